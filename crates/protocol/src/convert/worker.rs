//! Messages of workers.

use std::sync::Arc;

use bytes::Bytes;
use rollway_core::{
    AttemptId, FailureKind, Incarnation, RunFailure, RunId, RunOutcome, RunOutput, RunnerId,
};

use super::{compact, text, truncate};
use crate::field_error::InvalidField;
use crate::message::{
    Hello, LogLine, LogSource, RunnerHeartbeat, StopCause, VersionRange, WorkerLogLevel,
    WorkerMessage, WorkerReport,
};
use crate::proto::{self, run_finished, worker_message::Kind};

/// Maximum number of runners of one worker.
const MAX_RUNNERS: u32 = 65_536;

/// Maximum number of labels kept from the heartbeat of a runner.
const MAX_LABELS: usize = 64;

impl TryFrom<proto::Hello> for Hello {
    type Error = InvalidField;

    fn try_from(hello: proto::Hello) -> Result<Self, InvalidField> {
        let proto::Hello { protocol_min: min, protocol_max: max, runners, pid, .. } = hello;
        if min < 1 {
            return Err(InvalidField::missing("hello.protocol_min"));
        }
        if max < min {
            let problem = format!("{max} is older than protocol_min {min}");
            return Err(InvalidField::new("hello.protocol_max", problem));
        }
        if !(1..=MAX_RUNNERS).contains(&runners) {
            let problem = format!("{runners} is not between 1 and {MAX_RUNNERS}");
            return Err(InvalidField::new("hello.runners", problem));
        }
        Ok(Self {
            versions: VersionRange { min, max },
            token: truncate(&hello.token).to_owned(),
            runners,
            language: truncate(&hello.language).to_owned(),
            pid: (pid > 0).then_some(pid),
            host: truncate(&hello.host).to_owned(),
            package_version: truncate(&hello.package_version).to_owned(),
        })
    }
}

impl proto::Hello {
    /// Encodes a hello with the nonce of its connection.
    pub(crate) fn with_nonce(hello: Hello, nonce: Bytes) -> Self {
        Self {
            protocol_min: hello.versions.min,
            protocol_max: hello.versions.max,
            token: hello.token,
            runners: hello.runners,
            language: hello.language,
            pid: hello.pid.unwrap_or(0),
            host: hello.host,
            package_version: hello.package_version,
            nonce,
        }
    }
}

impl TryFrom<Kind> for WorkerMessage {
    type Error = InvalidField;

    fn try_from(kind: Kind) -> Result<Self, InvalidField> {
        let (runner, incarnation, report) = match kind {
            Kind::Hello(_) => return Err(InvalidField::new("hello", "only the first message")),
            Kind::Proof(_) => return Err(InvalidField::new("proof", "only in the handshake")),
            Kind::Heartbeat(proto::Heartbeat { runners }) => {
                return Ok(Self::Heartbeat(runners.into_iter().map(Into::into).collect()));
            }
            Kind::Log(log) => return log.try_into().map(Self::Log),
            Kind::Goodbye(proto::Goodbye { reason }) => {
                return Ok(Self::Goodbye { reason: text(&reason) });
            }
            Kind::Ready(proto::Ready { runner, incarnation, after_attempt }) => {
                (runner, incarnation, WorkerReport::Ready { after: after_attempt.map(AttemptId) })
            }
            Kind::AttemptBegan(proto::AttemptBegan { runner, incarnation, attempt }) => {
                (runner, incarnation, WorkerReport::AttemptBegan { attempt: AttemptId(attempt) })
            }
            Kind::RunFinished(proto::RunFinished {
                runner,
                incarnation,
                attempt,
                run,
                outcome,
            }) => {
                let missing = || InvalidField::missing("run_finished.outcome");
                let outcome = run_outcome(outcome.ok_or_else(missing)?)?;
                let (attempt, run) = (AttemptId(attempt), RunId(run));
                (runner, incarnation, WorkerReport::RunFinished { attempt, run, outcome })
            }
            Kind::AttemptEnded(proto::AttemptEnded { runner, incarnation, attempt }) => {
                (runner, incarnation, WorkerReport::AttemptEnded { attempt: AttemptId(attempt) })
            }
            Kind::RunnerStopped(stopped) => {
                let proto::RunnerStopped { runner, incarnation, cause, message, suspect } = stopped;
                let message = text(&message);
                let cause = match proto::StopCause::try_from(cause) {
                    Ok(proto::StopCause::Requested) => StopCause::Requested,
                    Ok(proto::StopCause::StartFailed) => StopCause::StartFailed { message },
                    Ok(proto::StopCause::Lost) => StopCause::Lost { message, suspect },
                    Ok(proto::StopCause::Unspecified) | Err(_) => {
                        return Err(InvalidField::unknown("runner_stopped.cause", cause));
                    }
                };
                (runner, incarnation, WorkerReport::Stopped(cause))
            }
        };
        Ok(Self::Runner { runner: RunnerId(runner), incarnation: Incarnation(incarnation), report })
    }
}

impl From<WorkerMessage> for proto::WorkerMessage {
    fn from(message: WorkerMessage) -> Self {
        let kind = match message {
            WorkerMessage::Runner { runner, incarnation, report } => {
                report_kind(runner, incarnation, report)
            }
            WorkerMessage::Heartbeat(runners) => Kind::Heartbeat(proto::Heartbeat {
                runners: runners.into_iter().map(Into::into).collect(),
            }),
            WorkerMessage::Log(log) => Kind::Log(log.into()),
            WorkerMessage::Goodbye { reason } => {
                Kind::Goodbye(proto::Goodbye { reason: reason.to_string() })
            }
        };
        Self { kind: Some(kind) }
    }
}

fn report_kind(
    RunnerId(runner): RunnerId,
    Incarnation(incarnation): Incarnation,
    report: WorkerReport,
) -> Kind {
    match report {
        WorkerReport::Ready { after } => Kind::Ready(proto::Ready {
            runner,
            incarnation,
            after_attempt: after.map(|after| after.0),
        }),
        WorkerReport::AttemptBegan { attempt: AttemptId(attempt) } => {
            Kind::AttemptBegan(proto::AttemptBegan { runner, incarnation, attempt })
        }
        WorkerReport::RunFinished { attempt: AttemptId(attempt), run: RunId(run), outcome } => {
            let outcome = Some(outcome.into());
            Kind::RunFinished(proto::RunFinished { runner, incarnation, attempt, run, outcome })
        }
        WorkerReport::AttemptEnded { attempt: AttemptId(attempt) } => {
            Kind::AttemptEnded(proto::AttemptEnded { runner, incarnation, attempt })
        }
        WorkerReport::Stopped(cause) => {
            let (cause, message, suspect) = match cause {
                StopCause::Requested => (proto::StopCause::Requested, "".into(), false),
                StopCause::StartFailed { message } => {
                    (proto::StopCause::StartFailed, message, false)
                }
                StopCause::Lost { message, suspect } => (proto::StopCause::Lost, message, suspect),
            };
            let (cause, message) = (cause.into(), message.to_string());
            Kind::RunnerStopped(proto::RunnerStopped {
                runner,
                incarnation,
                cause,
                message,
                suspect,
            })
        }
    }
}

fn run_outcome(outcome: run_finished::Outcome) -> Result<RunOutcome<Bytes>, InvalidField> {
    Ok(match outcome {
        run_finished::Outcome::Succeeded(proto::Succeeded { payload, metrics }) => {
            let payload = payload.map(compact);
            Ok(RunOutput { payload, metrics: metrics.into_iter().collect() })
        }
        run_finished::Outcome::Failed(proto::Failed { kind, message }) => {
            let unknown = || InvalidField::unknown("run_finished.failed.kind", kind);
            let kind = failure_kind(kind).ok_or_else(unknown)?;
            Err(RunFailure { kind, message: text(&message) })
        }
    })
}

impl From<RunOutcome<Bytes>> for run_finished::Outcome {
    fn from(outcome: RunOutcome<Bytes>) -> Self {
        match outcome {
            Ok(RunOutput { payload, metrics }) => Self::Succeeded(proto::Succeeded {
                payload,
                metrics: metrics.iter().map(|(key, value)| (key.to_string(), value)).collect(),
            }),
            Err(RunFailure { kind, message }) => Self::Failed(proto::Failed {
                kind: proto_failure_kind(kind),
                message: truncate(&message).into(),
            }),
        }
    }
}

/// Prefix of the names of failure kinds, which are in capitals in the schema.
const FAILURE_KIND: &str = "FAILURE_KIND_";

fn failure_kind(value: i32) -> Option<FailureKind> {
    let name =
        proto::FailureKind::try_from(value).ok()?.as_str_name().strip_prefix(FAILURE_KIND)?;
    FailureKind::ALL.iter().copied().find(|kind| kind.name().eq_ignore_ascii_case(name))
}

fn proto_failure_kind(kind: FailureKind) -> i32 {
    let name = format!("{FAILURE_KIND}{}", kind.name().to_ascii_uppercase());
    proto::FailureKind::from_str_name(&name).unwrap_or_default().into()
}

proto_enum! { LogLevel as WorkerLogLevel: log_level, proto_log_level;
    Debug = [WorkerLogLevel::Debug],
    Info = [WorkerLogLevel::Info],
    Warning = [WorkerLogLevel::Warning],
    Error = [WorkerLogLevel::Error],
}

impl From<proto::RunnerHeartbeat> for RunnerHeartbeat {
    fn from(heartbeat: proto::RunnerHeartbeat) -> Self {
        let proto::RunnerHeartbeat { runner, incarnation, attempt, labels } = heartbeat;
        let labels = labels.into_iter().take(MAX_LABELS);
        Self {
            runner: RunnerId(runner),
            incarnation: Incarnation(incarnation),
            attempt: attempt.map(AttemptId),
            labels: labels
                .map(|(key, value)| (truncate(&key).into(), truncate(&value).into()))
                .collect(),
        }
    }
}

impl From<RunnerHeartbeat> for proto::RunnerHeartbeat {
    fn from(heartbeat: RunnerHeartbeat) -> Self {
        let RunnerHeartbeat {
            runner: RunnerId(runner),
            incarnation: Incarnation(incarnation),
            attempt,
            labels,
        } = heartbeat;
        Self { runner, incarnation, attempt: attempt.map(|attempt| attempt.0), labels }
    }
}

impl TryFrom<proto::Log> for LogLine {
    type Error = InvalidField;

    fn try_from(log: proto::Log) -> Result<Self, InvalidField> {
        let proto::Log { runner, level, line, logger, batch, task_id: task, run, attempt } = log;
        let unknown = || InvalidField::unknown("log.level", level);
        let level = log_level(level).ok_or_else(unknown)?;
        let text_of = |name: Option<String>| name.map(|name| text(&name));
        let (logger, batch) = (text_of(logger), text_of(batch));
        let source = LogSource { logger, batch, task, run, attempt };
        Ok(Self { runner: runner.map(RunnerId), level, line: text(&line), source })
    }
}

impl From<LogLine> for proto::Log {
    fn from(log: LogLine) -> Self {
        let LogSource { logger, batch, task, run, attempt } = log.source;
        let text_of = |name: Option<Arc<str>>| name.map(|name| truncate(&name).to_owned());
        Self {
            runner: log.runner.map(|runner| runner.0),
            level: proto_log_level(log.level),
            line: truncate(&log.line).to_owned(),
            logger: text_of(logger),
            batch: text_of(batch),
            task_id: task,
            run,
            attempt,
        }
    }
}
