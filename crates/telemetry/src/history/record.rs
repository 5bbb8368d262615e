//! Records of the files: ended runs, and job events.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollway_core::{CancelReason, DropReason, FailureKind, RunEnd, RunFailure, RunState};
use serde::{Deserialize, Serialize};

use super::codec::{Put, Take};
use crate::view::{ConfigReport, JobState, ServerReport, StatsSample};

/// Tag of a run.
const RUN: u8 = 1;
/// Tag of a task whose experiences were dropped.
const DROPPED: u8 = 2;

/// Outcome of an attempt whose runner was lost.
const LOST: &str = "lost";

/// Bytes of tag and length before a record.
pub(super) const HEAD: usize = 5;

/// An ended run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunRecord {
    pub(super) batch: u32,
    pub(super) task: u32,
    pub(super) run: u32,
    pub(super) end_state: RunEnd,
    pub(super) begin: Option<f64>,
    pub(super) end: f64,
    pub(super) runner: Option<u32>,
    /// Number of attempts.
    pub(super) attempt_count: u32,
    pub(super) seconds: Option<f64>,
    pub(super) reward: Option<f64>,
    pub(super) tokens: Option<u64>,
    pub(super) turns: Option<u64>,
    pub(super) version: Option<u64>,
    pub(super) message: Option<Arc<str>>,
    pub(super) trajectory: Option<Trajectory>,
    pub(super) attempts: Vec<AttemptRecord>,
    /// Number of dropped attempts and calls.
    pub(super) left_out: u64,
}

/// Writes the name of the state, and that of the failure kind or the cancel reason.
fn put_end(end: &RunEnd, put: &mut Put) {
    put.text(end.state().name());
    match end {
        RunEnd::Succeeded(()) => {}
        RunEnd::Failed(failure) => put.text(failure.kind.name()),
        RunEnd::Cancelled(reason) => put.text(reason.name()),
    }
}

/// Reads an end; the message of a failure follows later in the record.
fn take_end(take: &mut Take<'_>) -> Option<RunEnd> {
    Some(match named(take, RunState::ALL, RunState::name)? {
        RunState::Succeeded => RunEnd::Succeeded(()),
        RunState::Failed => {
            let kind = named(take, FailureKind::ALL, FailureKind::name)?;
            RunEnd::Failed(RunFailure::new(kind, ""))
        }
        RunState::Cancelled => {
            RunEnd::Cancelled(named(take, CancelReason::ALL, CancelReason::name)?)
        }
        RunState::Pending | RunState::Running => return None,
    })
}

/// Reads a name and returns its value.
fn named<T: Copy>(take: &mut Take<'_>, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
    let found = take.text()?;
    all.iter().copied().find(|known| name(*known) == found)
}

/// Position of a run's experiences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trajectory {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct AttemptRecord {
    pub(super) attempt: u64,
    pub(super) runner: u32,
    pub(super) incarnation: u32,
    pub(super) location: Option<Arc<str>>,
    pub(super) sent_at: f64,
    pub(super) began: Option<f64>,
    pub(super) ended: Option<f64>,
    pub(super) state: RunState,
    /// The runner was lost; `state` is failed.
    pub(super) is_lost: bool,
    pub(super) message: Option<Arc<str>>,
    pub(super) calls: Vec<CallRecord>,
}

#[derive(Clone, Debug, Default, PartialEq)]
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

/// Returns a time in microseconds after another.
fn micros_after(from: f64, at: Option<f64>) -> Option<u64> {
    at.map(|at| ((at - from).max(0.0) * 1e6) as u64)
}

fn time_after(from: f64, micros: Option<u64>) -> Option<f64> {
    micros.map(|micros| from + micros as f64 / 1e6)
}

impl RunRecord {
    pub(super) fn put(&self, put: &mut Put) {
        framed(put, RUN, |put| {
            put.number(self.batch.into());
            put.number(self.task.into());
            put.number(self.run.into());
            put_end(&self.end_state, put);
            put.maybe_float(self.begin);
            put.float(self.end);
            put.maybe(self.runner.map(u64::from));
            put.number(self.attempt_count.into());
            put.maybe_float(self.seconds);
            put.maybe_float(self.reward);
            put.maybe(self.tokens);
            put.maybe(self.turns);
            put.maybe(self.version);
            put.maybe_text(self.message.as_deref());
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

    /// Reads a run, with its attempts if `is_whole`.
    fn take(take: &mut Take<'_>, is_whole: bool) -> Option<Self> {
        let mut record = Self {
            batch: take.small()?,
            task: take.small()?,
            run: take.small()?,
            end_state: take_end(take)?,
            begin: take.maybe_float()?,
            end: take.float()?,
            runner: take.maybe()?.and_then(|runner| u32::try_from(runner).ok()),
            attempt_count: take.small()?,
            seconds: take.maybe_float()?,
            reward: take.maybe_float()?,
            tokens: take.maybe()?,
            turns: take.maybe()?,
            version: take.maybe()?,
            message: take.maybe_text()?,
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
        if let (RunEnd::Failed(failure), Some(message)) = (&mut record.end_state, &record.message) {
            failure.message = Arc::clone(message);
        }
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
    /// Returns the stored name of its outcome.
    pub(super) const fn outcome(&self) -> &'static str {
        if self.is_lost { LOST } else { self.state.name() }
    }

    fn put(&self, put: &mut Put) {
        put.number(self.attempt);
        put.number(self.runner.into());
        put.number(self.incarnation.into());
        put.maybe_text(self.location.as_deref());
        put.float(self.sent_at);
        put.maybe(micros_after(self.sent_at, self.began));
        put.maybe(micros_after(self.sent_at, self.ended));
        put.text(self.outcome());
        put.maybe_text(self.message.as_deref());
        put.number(self.calls.len() as u64);
        for call in &self.calls {
            put.number(call.call);
            put.text(&call.model);
            put.maybe_text(call.server.as_deref());
            put.float(call.began);
            put.maybe(micros_after(call.began, call.sent));
            put.maybe(micros_after(call.began, call.ended));
            put.maybe(call.status.map(u64::from));
            put.maybe(call.prompt_tokens);
            put.maybe(call.answer_tokens);
            put.maybe(call.version);
        }
    }

    fn take(take: &mut Take<'_>) -> Option<Self> {
        let (attempt, runner, incarnation) = (take.number()?, take.small()?, take.small()?);
        let (location, sent_at) = (take.maybe_text()?, take.float()?);
        let began = time_after(sent_at, take.maybe()?);
        let ended = time_after(sent_at, take.maybe()?);
        let (state, is_lost) = match take.text()? {
            LOST => (RunState::Failed, true),
            name => (*RunState::ALL.iter().find(|state| state.name() == name)?, false),
        };
        let mut record = Self {
            attempt,
            runner,
            incarnation,
            location,
            sent_at,
            began,
            ended,
            state,
            is_lost,
            message: take.maybe_text()?,
            calls: Vec::new(),
        };
        for _ in 0..take.number()? {
            let (call, model) = (take.number()?, take.text()?.into());
            let (server, began) = (take.maybe_text()?, take.float()?);
            record.calls.push(CallRecord {
                call,
                model,
                server,
                began,
                sent: time_after(began, take.maybe()?),
                ended: time_after(began, take.maybe()?),
                status: take.maybe()?.and_then(|status| u16::try_from(status).ok()),
                prompt_tokens: take.maybe()?,
                answer_tokens: take.maybe()?,
                version: take.maybe()?,
            });
        }
        Some(record)
    }
}

/// Record of a file of runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Run(Box<RunRecord>),
    Dropped { batch: u32, task: u32, reason: DropReason },
}

impl Record {
    /// Appends the drop of a task's experiences.
    pub(super) fn put_dropped(put: &mut Put, batch: u32, task: u32, reason: DropReason) {
        framed(put, DROPPED, |put| {
            put.number(batch.into());
            put.number(task.into());
            put.text(reason.name());
        });
    }

    /// Reads the next record. `None`: end, or invalid bytes.
    pub(super) fn next(take: &mut Take<'_>, is_whole: bool) -> Option<Self> {
        let tag = take.byte()?;
        let bytes = take.bytes(4)?.try_into().ok().map(u32::from_le_bytes)?;
        let mut take = Take(take.bytes(bytes as usize)?);
        match tag {
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

fn framed(put: &mut Put, tag: u8, body: impl FnOnce(&mut Put)) {
    put.byte(tag);
    let at = put.0.len();
    put.0.extend_from_slice(&[0; 4]);
    body(put);
    let bytes = u32::try_from(put.0.len() - at - 4).unwrap_or(u32::MAX);
    put.0[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
}

/// Record of the file of job events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) at: f64,
    #[serde(flatten)]
    pub(super) note: JobNote,
}

/// A job event, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum JobNote {
    /// A process opened the history.
    Opened {
        name: String,
        project: String,
        mode: String,
        job_dir: String,
    },
    Began {
        done_steps: u64,
        total_steps: Option<u64>,
        runners: u32,
    },
    /// Submitted tasks: workflow, runs of a task, number of tasks.
    Batch {
        number: u32,
        key: u64,
        id: String,
        train: bool,
        first: u32,
        tasks: Vec<(String, u32, u32)>,
    },
    /// The process continues a batch of an earlier one.
    Adopted {
        number: u32,
    },
    State {
        number: u32,
        state: String,
    },
    StepBegun {
        step: u64,
        tasks: u64,
        runs: u64,
    },
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
    Synced {
        step: u64,
        version: u64,
        waited: f64,
        loading: f64,
    },
    Trained {
        step: u64,
        seconds: Option<f64>,
        detail: String,
    },
    #[serde(rename = "said")]
    Info {
        #[serde(rename = "words")]
        message: String,
    },
    Alarm {
        kind: String,
        #[serde(rename = "words")]
        message: String,
        raised: bool,
    },
    Beat {
        beat: StatsSample,
    },
    /// Metrics of a step, an evaluation or the trainer.
    Metrics {
        step: u64,
        metrics: BTreeMap<String, f64>,
    },
    Servers {
        report: ServerReport,
    },
    Config {
        report: ConfigReport,
    },
    Totals {
        totals: Totals,
    },
    /// Orderly end of the process.
    Closed {
        outcome: JobState,
        error: Option<String>,
    },
}

/// Counts that are not part of runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Totals {
    pub(super) seconds_useful: f64,
    pub(super) seconds_lost: BTreeMap<String, f64>,
    pub(super) retried: BTreeMap<String, u64>,
    pub(super) experiences_dropped: BTreeMap<String, u64>,
    pub(super) dropped: BTreeMap<String, u64>,
    pub(super) prompt_tokens: u64,
    pub(super) answer_tokens: u64,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the record of a run that succeeded.
    pub(in crate::history) fn run(
        batch: u32,
        task: u32,
        run: u32,
        trajectory: Option<Trajectory>,
    ) -> RunRecord {
        let (end_state, attempts) = (RunEnd::Succeeded(()), Vec::new());
        RunRecord { batch, task, run, end_state, attempts, trajectory, ..record() }
    }

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
            incarnation: 1,
            location: Some("10.0.0.2".into()),
            sent_at: 100.0,
            began: Some(100.125),
            ended: Some(101.0),
            state: RunState::Failed,
            is_lost: true,
            message: Some("killed".into()),
            calls: vec![call],
        };
        RunRecord {
            batch: 300,
            task: 4,
            run: 5,
            end_state: RunEnd::Failed(RunFailure::new(FailureKind::RunnerLost, "killed")),
            begin: Some(100.0),
            end: 101.0,
            runner: Some(2),
            attempt_count: 1,
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
    fn records_survive_a_round_trip() {
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
    fn truncated_records_are_rejected() {
        let mut put = Put::default();
        record().put(&mut put);
        for end in 0..put.0.len() {
            assert_eq!(Record::next(&mut Take(&put.0[..end]), true), None, "{end} bytes");
        }
    }
}
