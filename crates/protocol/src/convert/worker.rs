//! What workers say.

use std::sync::Arc;

use bytes::Bytes;
use rollway_base::Secret;
use rollway_core::{
    AttemptId, FailureKind, Incarnation, RunFailure, RunId, RunOutcome, RunOutput, RunnerId,
};

use super::{compact, cut, text};
use crate::field_error::InvalidField;
use crate::message::{
    Hello, LogLine, LogSource, RunnerHeartbeat, StopCause, VersionRange, WorkerLogLevel,
    WorkerMessage, WorkerReport,
};
use crate::proto::{self, run_finished, worker_message::Kind};

/// More runners in one process are a mistake.
const MAX_RUNNERS: u32 = 65_536;

/// More entries in the state of a runner are not kept.
const MAX_STATE: usize = 64;

impl TryFrom<proto::Hello> for Hello {
    type Error = InvalidField;

    fn try_from(hello: proto::Hello) -> Result<Self, InvalidField> {
        let proto::Hello {
            protocol_min,
            protocol_max,
            secret,
            token,
            runners,
            language,
            pid,
            host,
            package_version,
        } = hello;
        if protocol_min < 1 {
            return Err(InvalidField::missing("hello.protocol_min"));
        }
        if protocol_max < protocol_min {
            let problem = format!("{protocol_max} is older than protocol_min {protocol_min}");
            return Err(InvalidField::new("hello.protocol_max", problem));
        }
        if !(1..=MAX_RUNNERS).contains(&runners) {
            let problem = format!("{runners} is not between 1 and {MAX_RUNNERS}");
            return Err(InvalidField::new("hello.runners", problem));
        }
        Ok(Self {
            versions: VersionRange { min: protocol_min, max: protocol_max },
            secret: Secret::new(secret).map_err(|_| InvalidField::missing("hello.secret"))?,
            token: cut(&token).to_owned(),
            runners,
            language: cut(&language).to_owned(),
            pid: (pid > 0).then_some(pid),
            host: cut(&host).to_owned(),
            package_version: cut(&package_version).to_owned(),
        })
    }
}

impl From<Hello> for proto::Hello {
    fn from(hello: Hello) -> Self {
        let Hello {
            versions: VersionRange { min, max },
            secret,
            token,
            runners,
            language,
            pid,
            host,
            package_version,
        } = hello;
        Self {
            protocol_min: min,
            protocol_max: max,
            secret: secret.reveal().to_owned(),
            token,
            runners,
            language,
            pid: pid.unwrap_or(0),
            host,
            package_version,
        }
    }
}

impl TryFrom<Kind> for WorkerMessage {
    type Error = InvalidField;

    fn try_from(kind: Kind) -> Result<Self, InvalidField> {
        let (runner, life, report) = match kind {
            Kind::Hello(_) => return Err(InvalidField::new("hello", "only the first message")),
            Kind::Heartbeat(proto::Heartbeat { runners }) => {
                return Ok(Self::Heartbeat(runners.into_iter().map(Into::into).collect()));
            }
            Kind::Log(log) => return log.try_into().map(Self::Log),
            Kind::Goodbye(proto::Goodbye { reason }) => {
                return Ok(Self::Goodbye { reason: text(&reason) });
            }
            Kind::Ready(proto::Ready { runner, life, after_attempt }) => {
                (runner, life, WorkerReport::Ready { after: after_attempt.map(AttemptId) })
            }
            Kind::AttemptBegan(proto::AttemptBegan { runner, life, attempt }) => {
                (runner, life, WorkerReport::AttemptBegan { attempt: AttemptId(attempt) })
            }
            Kind::RunFinished(proto::RunFinished { runner, life, attempt, run, outcome }) => {
                let missing = || InvalidField::missing("run_finished.outcome");
                let outcome = read_outcome(outcome.ok_or_else(missing)?)?;
                let (attempt, run) = (AttemptId(attempt), RunId(run));
                (runner, life, WorkerReport::RunFinished { attempt, run, outcome })
            }
            Kind::AttemptEnded(proto::AttemptEnded { runner, life, attempt }) => {
                (runner, life, WorkerReport::AttemptEnded { attempt: AttemptId(attempt) })
            }
            Kind::RunnerStopped(stopped) => {
                let proto::RunnerStopped { runner, life, cause, message, suspect } = stopped;
                let cause = match proto::StopCause::try_from(cause) {
                    Ok(proto::StopCause::Ordered) => StopCause::Requested,
                    Ok(proto::StopCause::StartFailed) => {
                        StopCause::StartFailed { message: text(&message) }
                    }
                    Ok(proto::StopCause::Lost) => {
                        StopCause::Lost { message: text(&message), suspect }
                    }
                    Ok(proto::StopCause::Unspecified) | Err(_) => {
                        return Err(InvalidField::unknown("runner_stopped.cause", cause));
                    }
                };
                (runner, life, WorkerReport::Stopped(cause))
            }
        };
        Ok(Self::Runner { runner: RunnerId(runner), life: Incarnation(life), report })
    }
}

impl From<WorkerMessage> for proto::WorkerMessage {
    fn from(message: WorkerMessage) -> Self {
        let kind = match message {
            WorkerMessage::Runner { runner, life, report } => about(runner, life, report),
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

fn about(runner: RunnerId, life: Incarnation, report: WorkerReport) -> Kind {
    let (RunnerId(runner), Incarnation(life)) = (runner, life);
    match report {
        WorkerReport::Ready { after } => {
            Kind::Ready(proto::Ready { runner, life, after_attempt: after.map(|after| after.0) })
        }
        WorkerReport::AttemptBegan { attempt: AttemptId(attempt) } => {
            Kind::AttemptBegan(proto::AttemptBegan { runner, life, attempt })
        }
        WorkerReport::RunFinished { attempt: AttemptId(attempt), run: RunId(run), outcome } => {
            let outcome = Some(outcome.into());
            Kind::RunFinished(proto::RunFinished { runner, life, attempt, run, outcome })
        }
        WorkerReport::AttemptEnded { attempt: AttemptId(attempt) } => {
            Kind::AttemptEnded(proto::AttemptEnded { runner, life, attempt })
        }
        WorkerReport::Stopped(cause) => {
            let (cause, message, suspect) = match cause {
                StopCause::Requested => (proto::StopCause::Ordered, String::new(), false),
                StopCause::StartFailed { message } => {
                    (proto::StopCause::StartFailed, message.to_string(), false)
                }
                StopCause::Lost { message, suspect } => {
                    (proto::StopCause::Lost, message.to_string(), suspect)
                }
            };
            let cause = cause.into();
            Kind::RunnerStopped(proto::RunnerStopped { runner, life, cause, message, suspect })
        }
    }
}

fn read_outcome(outcome: run_finished::Outcome) -> Result<RunOutcome<Bytes>, InvalidField> {
    Ok(match outcome {
        run_finished::Outcome::Succeeded(proto::Succeeded { payload, metrics }) => {
            let payload = payload.map(compact);
            Ok(RunOutput { payload, metrics: metrics.into_iter().collect() })
        }
        run_finished::Outcome::Failed(proto::Failed { kind, message }) => {
            let kind = match proto::FailureKind::try_from(kind) {
                Ok(proto::FailureKind::Workflow) => FailureKind::Workflow,
                Ok(proto::FailureKind::Timeout) => FailureKind::Timeout,
                Ok(proto::FailureKind::RunnerLost) => FailureKind::RunnerLost,
                Ok(proto::FailureKind::ModelUnavailable) => FailureKind::ModelUnavailable,
                Ok(proto::FailureKind::InvalidOutput) => FailureKind::InvalidOutput,
                Ok(proto::FailureKind::Unspecified) | Err(_) => {
                    return Err(InvalidField::unknown("run_finished.failed.kind", kind));
                }
            };
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
            Err(RunFailure { kind, message }) => {
                let kind = match kind {
                    FailureKind::Workflow => proto::FailureKind::Workflow,
                    FailureKind::Timeout => proto::FailureKind::Timeout,
                    FailureKind::RunnerLost => proto::FailureKind::RunnerLost,
                    FailureKind::ModelUnavailable => proto::FailureKind::ModelUnavailable,
                    FailureKind::InvalidOutput => proto::FailureKind::InvalidOutput,
                };
                Self::Failed(proto::Failed { kind: kind.into(), message: cut(&message).into() })
            }
        }
    }
}

impl From<proto::RunnerState> for RunnerHeartbeat {
    fn from(state: proto::RunnerState) -> Self {
        let proto::RunnerState { runner, life, attempt, state } = state;
        let entries = state.into_iter().take(MAX_STATE);
        Self {
            runner: RunnerId(runner),
            life: Incarnation(life),
            attempt: attempt.map(AttemptId),
            state: entries.map(|(key, value)| (cut(&key).into(), cut(&value).into())).collect(),
        }
    }
}

impl From<RunnerHeartbeat> for proto::RunnerState {
    fn from(state: RunnerHeartbeat) -> Self {
        let RunnerHeartbeat { runner: RunnerId(runner), life: Incarnation(life), attempt, state } =
            state;
        Self { runner, life, attempt: attempt.map(|attempt| attempt.0), state }
    }
}

impl TryFrom<proto::Log> for LogLine {
    type Error = InvalidField;

    fn try_from(log: proto::Log) -> Result<Self, InvalidField> {
        let proto::Log { runner, level, line, logger, batch, task_id, run, attempt } = log;
        let level = match proto::LogLevel::try_from(level) {
            Ok(proto::LogLevel::Debug) => WorkerLogLevel::Debug,
            Ok(proto::LogLevel::Info) => WorkerLogLevel::Info,
            Ok(proto::LogLevel::Warning) => WorkerLogLevel::Warning,
            Ok(proto::LogLevel::Error) => WorkerLogLevel::Error,
            Ok(proto::LogLevel::Unspecified) | Err(_) => {
                return Err(InvalidField::unknown("log.level", level));
            }
        };
        let known = |name: Option<String>| name.map(|name| text(&name));
        let (logger, batch) = (known(logger), known(batch));
        let source = LogSource { logger, batch, task: task_id, run, attempt };
        Ok(Self { runner: runner.map(RunnerId), level, line: text(&line), source })
    }
}

impl From<LogLine> for proto::Log {
    fn from(log: LogLine) -> Self {
        let LogLine { runner, level, line, source } = log;
        let LogSource { logger, batch, task, run, attempt } = source;
        let level = match level {
            WorkerLogLevel::Debug => proto::LogLevel::Debug,
            WorkerLogLevel::Info => proto::LogLevel::Info,
            WorkerLogLevel::Warning => proto::LogLevel::Warning,
            WorkerLogLevel::Error => proto::LogLevel::Error,
        };
        let runner = runner.map(|runner| runner.0);
        let known = |name: Option<Arc<str>>| name.map(|name| cut(&name).to_owned());
        Self {
            runner,
            level: level.into(),
            line: cut(&line).to_owned(),
            logger: known(logger),
            batch: known(batch),
            task_id: task,
            run,
            attempt,
        }
    }
}
