//! Messages of the worker protocol as validated types; [`crate::proto`] has their wire format.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_base::Secret;
use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchType, Incarnation, RunFailure, RunId, RunOutcome,
    RunOutput, RunRange, RunnerId, TaskId,
};

/// Range of protocol versions, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// At least 1.
    pub min: u32,
    pub max: u32,
}

impl VersionRange {
    /// Versions that this code implements.
    pub const SUPPORTED: Self = Self { min: 2, max: 2 };

    /// Returns the newest version in both ranges.
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

/// First message of a worker.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    pub versions: VersionRange,
    /// Token from the launcher. Empty: a manual worker.
    pub token: String,
    /// Number of runners offered, at least one.
    pub runners: u32,
    /// Programming language of the worker.
    pub language: String,
    pub pid: Option<u32>,
    pub host: String,
    pub package_version: String,
}

/// Without secret and token.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { versions, runners, language, pid, host, .. } = self;
        f.debug_struct("Hello")
            .field("versions", versions)
            .field("runners", runners)
            .field("language", language)
            .field("pid", pid)
            .field("host", host)
            .finish_non_exhaustive()
    }
}

impl Hello {
    /// Returns the hello of this process, with an empty host name.
    pub fn new(token: impl Into<String>, runners: u32) -> Self {
        Self {
            versions: VersionRange::SUPPORTED,
            token: token.into(),
            runners,
            language: "rust".to_owned(),
            pid: Some(std::process::id()),
            host: String::new(),
            package_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Response of the engine to a hello that it accepts.
#[derive(Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Negotiated protocol version.
    pub protocol: u32,
    /// Runners that the worker hosts.
    pub runners: Vec<(RunnerId, Incarnation)>,
    pub heartbeat_interval: Duration,
    pub max_message_bytes: u64,
    /// Number of workflow definitions that the worker caches.
    pub max_definitions: u32,
    /// Environment for a manual worker; may contain secrets.
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

/// Message of a worker after its hello.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerMessage {
    Runner { runner: RunnerId, incarnation: Incarnation, report: WorkerReport },
    Heartbeat(Vec<RunnerHeartbeat>),
    Log(LogLine),
    Goodbye { reason: Arc<str> },
}

impl WorkerMessage {
    /// Returns the size of the only part that may be large.
    pub(crate) fn payload_len(&self) -> usize {
        let Self::Runner { report: WorkerReport::RunFinished { outcome, .. }, .. } = self else {
            return 0;
        };
        match outcome {
            Ok(RunOutput { payload, .. }) => payload.as_ref().map_or(0, Bytes::len),
            Err(RunFailure { message, .. }) => message.len(),
        }
    }
}

/// Report of a worker about one of its runners: the subset of the core's reports that a worker can
/// make.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerReport {
    /// The runner is idle; `after` is the last attempt that it received.
    Ready {
        after: Option<AttemptId>,
    },
    AttemptBegan {
        attempt: AttemptId,
    },
    RunFinished {
        attempt: AttemptId,
        run: RunId,
        outcome: RunOutcome<Bytes>,
    },
    AttemptEnded {
        attempt: AttemptId,
    },
    /// This incarnation of the runner ended.
    Stopped(StopCause),
}

/// Reason for the end of a runner's incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The engine stopped it.
    Requested,
    StartFailed {
        message: Arc<str>,
    },
    /// It died; `suspect`: its attempt may be the cause.
    Lost {
        message: Arc<str>,
        suspect: bool,
    },
}

/// Current state of a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerHeartbeat {
    pub runner: RunnerId,
    pub incarnation: Incarnation,
    pub attempt: Option<AttemptId>,
    /// Labels for people: `workflow_id`, `model_version`, `begin_time`, `stage` and the like.
    pub labels: BTreeMap<String, String>,
}

/// Line for the job's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub runner: Option<RunnerId>,
    pub level: WorkerLogLevel,
    pub line: Arc<str>,
    pub source: LogSource,
}

/// Origin of a log line, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSource {
    pub logger: Option<Arc<str>>,
    pub batch: Option<Arc<str>>,
    pub task: Option<u32>,
    pub run: Option<u32>,
    pub attempt: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerLogLevel {
    Debug,
    Info,
    Warning,
    Error,
}

/// Message of the engine after its welcome.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineMessage {
    StartAttempt(StartAttempt),
    /// Stop an attempt and report its end.
    CancelAttempt {
        runner: RunnerId,
        incarnation: Incarnation,
        attempt: AttemptId,
        reason: AttemptCancelReason,
    },
    /// Start an incarnation of a runner.
    StartRunner {
        runner: RunnerId,
        incarnation: Incarnation,
    },
    /// End an incarnation of a runner.
    StopRunner {
        runner: RunnerId,
        incarnation: Incarnation,
    },
    /// Finish within `deadline` and send a goodbye.
    Shutdown {
        deadline: Duration,
    },
}

/// Order to execute runs of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct StartAttempt {
    pub runner: RunnerId,
    pub incarnation: Incarnation,
    pub attempt: AttemptId,
    pub batch: BatchId,
    pub kind: BatchType,
    pub task_id: TaskId,
    /// At least one run.
    pub runs: RunRange,
    /// The task, encoded as `definition.task_encoding` says.
    pub task: Bytes,
    /// Sent once per worker, however often it is used.
    pub definition: Arc<WorkflowDefinition>,
    /// Sent in whole milliseconds, rounded up.
    pub timeout: Duration,
    /// Number of runners lost under suspicion of this task.
    pub suspected_losses: u32,
    /// Gateway key of each run, in order. Empty: there is no gateway.
    pub model_keys: Vec<Secret>,
}

/// Number of a workflow definition. A changed workflow gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionId(pub u64);

/// Workflow as it is sent to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowDefinition {
    pub id: DefinitionId,
    pub name: Arc<str>,
    /// Encoding of the body: `name`, `cloudpickle` or the like.
    pub encoding: Arc<str>,
    /// Encoding of the workflow's tasks: `json`, `pickle` or the like.
    pub task_encoding: Arc<str>,
    pub body: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_common_version_is_negotiated() {
        let range = |min, max| VersionRange { min, max };
        assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
        assert_eq!(range(4, 4).common(range(1, 9)), Some(4));
        assert_eq!(range(1, 2).common(range(3, 4)), None);
    }
}
