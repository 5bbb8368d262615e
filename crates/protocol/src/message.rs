//! What is said, in types that hold valid values only. How they travel is [`crate::proto`]'s.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchType, Incarnation, RunFailure, RunId, RunOutcome,
    RunOutput, RunRange, RunnerId, TaskId,
};

use rollway_base::Secret;

/// A range of versions of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest; at least 1.
    pub min: u32,
    /// The newest; not older than the oldest.
    pub max: u32,
}

impl VersionRange {
    /// What this code speaks.
    pub const SUPPORTED: Self = Self { min: 1, max: 1 };

    /// Returns the newest version that both have.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max } = self;
        if min == max { write!(f, "{min}") } else { write!(f, "{min} to {max}") }
    }
}

/// Who a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions of the protocol that it speaks.
    pub versions: VersionRange,
    /// The engine's secret.
    pub secret: Secret,
    /// What it was given by whoever started it; empty if it joins by hand.
    pub token: String,
    /// How many attempts it can execute at once; at least one.
    pub runners: u32,
    /// The language it is written in.
    pub language: String,
    /// Its process on its host.
    pub pid: Option<u32>,
    /// The name of its host.
    pub host: String,
    pub package_version: String,
}

impl Hello {
    /// Returns the hello of this process. The name of the host is left to whoever needs it.
    pub fn new(secret: Secret, token: impl Into<String>, runners: u32) -> Self {
        Self {
            versions: VersionRange::SUPPORTED,
            secret,
            token: token.into(),
            runners,
            language: "rust".to_owned(),
            pid: Some(std::process::id()),
            host: String::new(),
            package_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// What a worker has to know when it is taken in.
#[derive(Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version of the protocol that is spoken.
    pub protocol: u32,
    /// The runners that it hosts.
    pub runners: Vec<(RunnerId, Incarnation)>,
    /// How often a heartbeat is expected.
    pub heartbeat_interval: Duration,
    /// The largest message, in bytes.
    pub max_message_bytes: u64,
    /// How many definitions a worker has to keep.
    pub max_definitions: u32,
    /// What it would have found in its environment if the engine had started it; may hold secrets.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.keys().collect();
        let mut shown = f.debug_struct("Welcome");
        shown.field("protocol", &self.protocol).field("runners", &self.runners);
        shown.field("env", &names).finish_non_exhaustive()
    }
}

/// What a worker says after its hello.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerMessage {
    /// Something about a runner.
    Runner {
        runner: RunnerId,
        life: Incarnation,
        report: WorkerReport,
    },
    /// It is alive, and so are these.
    Heartbeat(Vec<RunnerHeartbeat>),
    Log(LogLine),
    /// It leaves.
    Goodbye {
        reason: Arc<str>,
    },
}

impl WorkerMessage {
    /// Returns how many bytes the one part has that may be large.
    pub(crate) fn payload_len(&self) -> usize {
        match self {
            Self::Runner { report: WorkerReport::RunFinished { outcome, .. }, .. } => match outcome
            {
                Ok(RunOutput { payload, .. }) => payload.as_ref().map_or(0, Bytes::len),
                Err(RunFailure { message, .. }) => message.len(),
            },
            _ => 0,
        }
    }
}

/// Report of a worker about one of its runners: those of the core that a runner itself can make,
/// and the end of the runner.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerReport {
    /// It is idle.
    Ready {
        /// The last attempt that it was given.
        after: Option<AttemptId>,
    },
    /// It has begun an attempt.
    AttemptBegan { attempt: AttemptId },
    /// A run of an attempt ended.
    RunFinished { attempt: AttemptId, run: RunId, outcome: RunOutcome<Bytes> },
    /// An attempt is over.
    AttemptEnded { attempt: AttemptId },
    /// This life of it is over.
    Stopped(StopCause),
}

/// Why a life of a runner is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The engine wanted it so.
    Requested,
    /// It could not be started.
    StartFailed {
        /// In the words of whoever noticed.
        message: Arc<str>,
    },
    /// It died.
    Lost {
        /// In the words of whoever noticed.
        message: Arc<str>,
        /// Whether what it was doing may be the reason.
        suspect: bool,
    },
}

/// What a runner does at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerHeartbeat {
    pub runner: RunnerId,
    pub life: Incarnation,
    /// The attempt it executes.
    pub attempt: Option<AttemptId>,
    /// For people: `workflow_id`, `model_version`, `begin_time`, `stage` and the like.
    pub state: BTreeMap<String, String>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Which runner it comes from.
    pub runner: Option<RunnerId>,
    /// How important it is.
    pub level: WorkerLogLevel,
    /// The text.
    pub line: Arc<str>,
    /// Where in the worker it comes from.
    pub source: LogSource,
}

/// Where in a worker a line of the log comes from, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSource {
    /// The name of the logger.
    pub logger: Option<Arc<str>>,
    /// The batch of the run that said it.
    pub batch: Option<Arc<str>>,
    pub task: Option<u32>,
    pub run: Option<u32>,
    pub attempt: Option<u64>,
}

/// How important a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerLogLevel {
    /// For developers.
    Debug,
    /// For operators.
    Info,
    /// Something is odd.
    Warning,
    /// Something is wrong.
    Error,
}

/// What the engine says after its welcome.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineMessage {
    /// Execute runs of a task.
    StartAttempt(StartAttempt),
    /// Give an attempt up and say so.
    CancelAttempt {
        runner: RunnerId,
        life: Incarnation,
        attempt: AttemptId,
        reason: AttemptCancelReason,
    },
    /// Begin a new life of a runner.
    StartRunner {
        runner: RunnerId,
        /// The life that begins.
        life: Incarnation,
    },
    /// End a life of a runner.
    StopRunner {
        runner: RunnerId,
        /// The life that ends.
        life: Incarnation,
    },
    /// Finish and say goodbye.
    Shutdown {
        /// In which time.
        deadline: Duration,
    },
}

/// Runs of a task that a runner is to execute.
#[derive(Clone, Debug, PartialEq)]
pub struct StartAttempt {
    pub runner: RunnerId,
    pub life: Incarnation,
    /// Under which number.
    pub attempt: AttemptId,
    /// The batch of the task.
    pub batch: BatchId,
    /// Whether it is trained on.
    pub kind: BatchType,
    pub task_id: TaskId,
    /// The runs; at least one.
    pub runs: RunRange,
    /// The task itself, encoded as the definition says.
    pub task: Bytes,
    /// The workflow. It travels once per worker, however often it is used.
    pub definition: Arc<WorkflowDefinition>,
    /// How long the attempt may last; travels in whole milliseconds, rounded up.
    pub timeout: Duration,
    /// How many runners died under suspicion of this task.
    pub kills: u32,
    /// What each of the runs shows to the model gateway, in order; empty if there is none.
    pub model_keys: Vec<Secret>,
}

/// Names a workflow on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionId(pub u64);

/// A workflow as it travels to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowDefinition {
    /// Names it. One id is one workflow for ever: a changed workflow gets a new one.
    pub id: DefinitionId,
    /// The name of the workflow.
    pub name: Arc<str>,
    /// What the body is: `name`, `cloudpickle` or the like.
    pub encoding: Arc<str>,
    /// What the tasks of this workflow are: `json`, `pickle` or the like.
    pub task_encoding: Arc<str>,
    /// The workflow.
    pub body: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_meet_at_the_newest_common_one() {
        let range = |min, max| VersionRange { min, max };
        assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
        assert_eq!(range(4, 4).common(range(1, 9)), Some(4));
        assert_eq!(range(1, 2).common(range(3, 4)), None);
    }
}
