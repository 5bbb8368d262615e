//! What is written of a run when it is over, and of everything else that is kept.

use std::sync::Arc;

use rollway_core::{CancelReason, DropReason, FailureKind, RunState};
use serde::{Deserialize, Serialize};

use super::codec::{Put, Take};
use crate::view::{JobState, StatsSample};

/// Begins the record of a run.
const RUN: u8 = 1;
/// Begins the record of a task whose experiences were dropped.
const DROPPED: u8 = 2;

/// Bytes before what a record says: what it is, and how long.
pub(super) const HEAD: usize = 5;

/// A run that is over.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunRecord {
    pub(super) batch: u32,
    pub(super) task: u32,
    pub(super) run: u32,
    pub(super) how: StoredRunEnd,
    pub(super) begin: Option<f64>,
    pub(super) end: f64,
    pub(super) runner: Option<u32>,
    /// How often it was given to a runner.
    pub(super) tries: u32,
    pub(super) seconds: Option<f64>,
    pub(super) reward: Option<f64>,
    pub(super) tokens: Option<u64>,
    pub(super) turns: Option<u64>,
    pub(super) version: Option<u64>,
    pub(super) message: Option<Arc<str>>,
    pub(super) trajectory: Option<Trajectory>,
    pub(super) attempts: Vec<AttemptRecord>,
    /// Attempts and calls that there was no room for.
    pub(super) left_out: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredRunEnd {
    Succeeded,
    Failed(FailureKind),
    Cancelled(CancelReason),
}

impl StoredRunEnd {
    pub(super) const fn state(self) -> RunState {
        match self {
            Self::Succeeded => RunState::Succeeded,
            Self::Failed(_) => RunState::Failed,
            Self::Cancelled(_) => RunState::Cancelled,
        }
    }

    /// Writes the name of the state, and that of the failure kind or the cancel reason.
    fn put(self, put: &mut Put) {
        put.text(self.state().name());
        match self {
            Self::Succeeded => {}
            Self::Failed(kind) => put.text(kind.name()),
            Self::Cancelled(reason) => put.text(reason.name()),
        }
    }

    fn take(take: &mut Take<'_>) -> Option<Self> {
        match named(take, RunState::ALL, RunState::name)? {
            RunState::Succeeded => Some(Self::Succeeded),
            RunState::Failed => named(take, FailureKind::ALL, FailureKind::name).map(Self::Failed),
            RunState::Cancelled => {
                named(take, CancelReason::ALL, CancelReason::name).map(Self::Cancelled)
            }
            RunState::Pending | RunState::Running => None,
        }
    }
}

/// Reads a name and returns the value that has it.
fn named<T: Copy>(take: &mut Take<'_>, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
    let found = take.words()?;
    all.iter().copied().find(|known| name(*known) == found)
}

/// Where the experiences of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trajectory {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

/// One attempt of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AttemptRecord {
    pub(super) attempt: u64,
    pub(super) runner: u32,
    pub(super) life: u32,
    /// Where the runner was.
    pub(super) node: Option<Arc<str>>,
    pub(super) given: f64,
    pub(super) began: Option<f64>,
    pub(super) ended: Option<f64>,
    pub(super) outcome: Outcome,
    pub(super) message: Option<Arc<str>>,
    pub(super) calls: Vec<CallRecord>,
}

/// What became of an attempt, as far as one run is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    #[default]
    Running,
    Succeeded,
    Failed,
    Cancelled,
    Lost,
}

impl Outcome {
    const ALL: [Self; 5] =
        [Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled, Self::Lost];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// One model call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallRecord {
    pub(super) call: u64,
    pub(super) model: Arc<str>,
    pub(super) server: Option<Arc<str>>,
    pub(super) began: f64,
    pub(super) sent: Option<f64>,
    pub(super) ended: Option<f64>,
    pub(super) status: Option<u16>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) answer_tokens: Option<u64>,
    pub(super) version: Option<u64>,
}

/// A moment after another, in microseconds.
fn later(from: f64, at: Option<f64>) -> Option<u64> {
    at.map(|at| ((at - from).max(0.0) * 1e6) as u64)
}

fn moment(from: f64, micros: Option<u64>) -> Option<f64> {
    micros.map(|micros| from + micros as f64 / 1e6)
}

impl RunRecord {
    /// Appends it.
    pub(super) fn put(&self, put: &mut Put) {
        framed(put, RUN, |put| {
            put.number(self.batch.into());
            put.number(self.task.into());
            put.number(self.run.into());
            self.how.put(put);
            put.maybe_float(self.begin);
            put.float(self.end);
            put.maybe(self.runner.map(u64::from));
            put.number(self.tries.into());
            put.maybe_float(self.seconds);
            put.maybe_float(self.reward);
            put.maybe(self.tokens);
            put.maybe(self.turns);
            put.maybe(self.version);
            put.maybe_words(self.message.as_deref());
            put.byte(u8::from(self.trajectory.is_some()));
            if let Some(Trajectory { segment, offset, bytes }) = self.trajectory {
                put.number(segment.into());
                put.number(offset);
                put.number(bytes.into());
            }
            put.number(self.attempts.len() as u64);
            self.attempts.iter().for_each(|attempt| attempt.put(put));
            put.number(self.left_out);
        });
    }

    /// Reads it; without attempts if only the run itself is of interest.
    fn take(take: &mut Take<'_>, is_whole: bool) -> Option<Self> {
        let mut record = Self {
            batch: take.small()?,
            task: take.small()?,
            run: take.small()?,
            how: StoredRunEnd::take(take)?,
            begin: take.maybe_float()?,
            end: take.float()?,
            runner: take.maybe()?.and_then(|runner| u32::try_from(runner).ok()),
            tries: take.small()?,
            seconds: take.maybe_float()?,
            reward: take.maybe_float()?,
            tokens: take.maybe()?,
            turns: take.maybe()?,
            version: take.maybe()?,
            message: take.maybe_words()?,
            trajectory: match take.byte()? {
                0 => None,
                _ => Some(Trajectory {
                    segment: take.small()?,
                    offset: take.number()?,
                    bytes: take.small()?,
                }),
            },
            attempts: Vec::new(),
            left_out: 0,
        };
        if is_whole {
            for _ in 0..take.number()? {
                record.attempts.push(AttemptRecord::take(take)?);
            }
            record.left_out = take.number()?;
        }
        Some(record)
    }
}

impl AttemptRecord {
    fn put(&self, put: &mut Put) {
        put.number(self.attempt);
        put.number(self.runner.into());
        put.number(self.life.into());
        put.maybe_words(self.node.as_deref());
        put.float(self.given);
        put.maybe(later(self.given, self.began));
        put.maybe(later(self.given, self.ended));
        put.text(self.outcome.name());
        put.maybe_words(self.message.as_deref());
        put.number(self.calls.len() as u64);
        for call in &self.calls {
            put.number(call.call);
            put.text(&call.model);
            put.maybe_words(call.server.as_deref());
            put.float(call.began);
            put.maybe(later(call.began, call.sent));
            put.maybe(later(call.began, call.ended));
            put.maybe(call.status.map(u64::from));
            put.maybe(call.prompt_tokens);
            put.maybe(call.answer_tokens);
            put.maybe(call.version);
        }
    }

    fn take(take: &mut Take<'_>) -> Option<Self> {
        let (attempt, runner, life) = (take.number()?, take.small()?, take.small()?);
        let (node, given) = (take.maybe_words()?, take.float()?);
        let mut record = Self {
            attempt,
            runner,
            life,
            node,
            given,
            began: moment(given, take.maybe()?),
            ended: moment(given, take.maybe()?),
            outcome: named(take, &Outcome::ALL, Outcome::name)?,
            message: take.maybe_words()?,
            calls: Vec::new(),
        };
        for _ in 0..take.number()? {
            let (call, model) = (take.number()?, take.words()?.into());
            let (server, began) = (take.maybe_words()?, take.float()?);
            record.calls.push(CallRecord {
                call,
                model,
                server,
                began,
                sent: moment(began, take.maybe()?),
                ended: moment(began, take.maybe()?),
                status: take.maybe()?.and_then(|status| u16::try_from(status).ok()),
                prompt_tokens: take.maybe()?,
                answer_tokens: take.maybe()?,
                version: take.maybe()?,
            });
        }
        Some(record)
    }
}

/// What is in the files of runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Run(Box<RunRecord>),
    Dropped { batch: u32, task: u32, reason: DropReason },
}

impl Record {
    /// Appends that the experiences of a task were dropped.
    pub(super) fn put_dropped(put: &mut Put, batch: u32, task: u32, reason: DropReason) {
        framed(put, DROPPED, |put| {
            put.number(batch.into());
            put.number(task.into());
            put.text(reason.name());
        });
    }

    /// Reads the next one. None: the bytes are not what was written.
    pub(super) fn next(take: &mut Take<'_>, is_whole: bool) -> Option<Self> {
        let what = take.byte()?;
        let bytes = take.bytes(4)?.try_into().ok().map(u32::from_le_bytes)?;
        let mut take = Take(take.bytes(bytes as usize)?);
        match what {
            RUN => RunRecord::take(&mut take, is_whole).map(Box::new).map(Self::Run),
            DROPPED => {
                let (batch, task) = (take.small()?, take.small()?);
                let reason = named(&mut take, DropReason::ALL, DropReason::name)?;
                Some(Self::Dropped { batch, task, reason })
            }
            _ => None,
        }
    }
}

fn framed(put: &mut Put, what: u8, body: impl FnOnce(&mut Put)) {
    put.byte(what);
    let at = put.0.len();
    put.0.extend_from_slice(&[0; 4]);
    body(put);
    let bytes = u32::try_from(put.0.len() - at - 4).unwrap_or(u32::MAX);
    put.0[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
}

/// What is in the file of events: everything but runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) at: f64,
    #[serde(flatten)]
    pub(super) what: JobNote,
}

/// Something that happened to a job, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum JobNote {
    /// A process of the job began.
    Opened {
        name: String,
        project: String,
        mode: String,
        job_dir: String,
    },
    /// Its loop began.
    Began {
        done_steps: u64,
        total_steps: Option<u64>,
        runners: u32,
    },
    /// Tasks were taken in: of each workflow so many tasks with so many runs.
    Batch {
        number: u32,
        key: u64,
        id: String,
        train: bool,
        first: u32,
        tasks: Vec<(String, u32, u32)>,
    },
    /// A process goes on with a batch of an earlier one.
    Adopted {
        number: u32,
    },
    /// A batch is in another state.
    State {
        number: u32,
        state: String,
    },
    StepBegun {
        step: u64,
        tasks: u64,
        runs: u64,
    },
    /// A step was finalized.
    StepDone {
        step: u64,
        mean: Option<f64>,
        min: Option<f64>,
        max: Option<f64>,
        detail: String,
    },
    Evaluated {
        step: u64,
        version: u64,
        set: String,
        score: Option<f64>,
    },
    /// Weights were exchanged.
    Synced {
        step: u64,
        version: u64,
        waited: f64,
        loading: f64,
    },
    /// The trainer made a step.
    Trained {
        step: u64,
        seconds: Option<f64>,
        detail: String,
    },
    /// Something that a person should know.
    Said {
        words: String,
    },
    Alarm {
        kind: String,
        words: String,
        raised: bool,
    },
    /// The numbers of a moment.
    Beat {
        beat: StatsSample,
    },
    /// What was wasted and dropped so far.
    Totals {
        totals: Totals,
    },
    /// The process ended in an orderly way.
    Closed {
        outcome: JobState,
        error: Option<String>,
    },
}

/// What is counted beside the runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Totals {
    pub(super) seconds_useful: f64,
    pub(super) seconds_lost: std::collections::BTreeMap<String, f64>,
    pub(super) retried: std::collections::BTreeMap<String, u64>,
    pub(super) experiences_dropped: std::collections::BTreeMap<String, u64>,
    pub(super) dropped: std::collections::BTreeMap<String, u64>,
    pub(super) prompt_tokens: u64,
    pub(super) answer_tokens: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RunRecord {
        let call = CallRecord {
            call: 7,
            model: "policy".into(),
            server: Some("http://a".into()),
            began: 100.25,
            sent: Some(100.5),
            ended: None,
            status: Some(200),
            prompt_tokens: Some(0),
            answer_tokens: None,
            version: Some(3),
        };
        let attempt = AttemptRecord {
            attempt: 1 << 41,
            runner: 2,
            life: 1,
            node: Some("10.0.0.2".into()),
            given: 100.0,
            began: Some(100.125),
            ended: Some(101.0),
            outcome: Outcome::Lost,
            message: Some("killed".into()),
            calls: vec![call],
        };
        RunRecord {
            batch: 300,
            task: 4,
            run: 5,
            how: StoredRunEnd::Failed(FailureKind::RunnerLost),
            begin: Some(100.0),
            end: 101.0,
            runner: Some(2),
            tries: 1,
            seconds: Some(0.875),
            reward: None,
            tokens: Some(12),
            turns: None,
            version: None,
            message: Some("killed".into()),
            trajectory: Some(Trajectory { segment: 1, offset: 9, bytes: 10 }),
            attempts: vec![attempt],
            left_out: 2,
        }
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let mut put = Put::default();
        record().put(&mut put);
        Record::put_dropped(&mut put, 3, 4, DropReason::Aborted);
        let mut take = Take(&put.0);
        assert_eq!(Record::next(&mut take, true), Some(Record::Run(Box::new(record()))));
        let dropped = Record::Dropped { batch: 3, task: 4, reason: DropReason::Aborted };
        assert_eq!(Record::next(&mut take, true), Some(dropped));
        assert!(take.0.is_empty());
    }

    #[test]
    fn what_was_cut_is_no_record() {
        let mut put = Put::default();
        record().put(&mut put);
        for end in 0..put.0.len() {
            assert_eq!(Record::next(&mut Take(&put.0[..end]), true), None, "{end} bytes");
        }
    }
}
