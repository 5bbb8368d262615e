//! Messages of the engine, and the workflow definitions that each worker receives once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::Secret;
use rollway_core::{
    AttemptCancelReason, AttemptId, BatchId, BatchType, CancelReason, Incarnation, RunRange,
    RunnerId, TaskId,
};

use super::{compact, to_ms};
use crate::field_error::InvalidField;
use crate::message::{DefinitionId, EngineMessage, StartAttempt, Welcome, WorkflowDefinition};
use crate::proto::{self, engine_message::Kind, start_attempt::Batch};

/// Definitions that a worker received: resolves their ids in messages of the engine.
#[derive(Debug, Default)]
pub(crate) struct DefinitionCache(BTreeMap<DefinitionId, Arc<WorkflowDefinition>>);

impl DefinitionCache {
    /// Returns the message for the worker. `None`: it only changed the cache.
    pub(crate) fn resolve(&mut self, kind: Kind) -> Result<Option<EngineMessage>, InvalidField> {
        Ok(Some(match kind {
            Kind::Welcome(_) => return Err(InvalidField::new("welcome", "only the first message")),
            Kind::Challenge(_) => {
                return Err(InvalidField::new("challenge", "only in the handshake"));
            }
            Kind::Refused(_) => return Err(InvalidField::new("refused", "only the last message")),
            Kind::DefineWorkflow(define) => {
                let definition = WorkflowDefinition::from(define);
                self.0.insert(definition.id, definition.into());
                return Ok(None);
            }
            Kind::ForgetWorkflows(proto::ForgetWorkflows { ids }) => {
                for id in ids {
                    self.0.remove(&DefinitionId(id));
                }
                return Ok(None);
            }
            Kind::StartAttempt(start) => EngineMessage::StartAttempt(self.start(start)?),
            Kind::CancelAttempt(proto::CancelAttempt { runner, incarnation, attempt, reason }) => {
                let unknown = || InvalidField::unknown("cancel_attempt.reason", reason);
                EngineMessage::CancelAttempt {
                    runner: RunnerId(runner),
                    incarnation: Incarnation(incarnation),
                    attempt: AttemptId(attempt),
                    reason: cancel_reason(reason).ok_or_else(unknown)?,
                }
            }
            Kind::StartRunner(proto::StartRunner { runner, incarnation }) => {
                EngineMessage::StartRunner {
                    runner: RunnerId(runner),
                    incarnation: Incarnation(incarnation),
                }
            }
            Kind::StopRunner(proto::StopRunner { runner, incarnation }) => {
                EngineMessage::StopRunner {
                    runner: RunnerId(runner),
                    incarnation: Incarnation(incarnation),
                }
            }
            Kind::Shutdown(proto::Shutdown { deadline_ms }) => {
                EngineMessage::Shutdown { deadline: Duration::from_millis(deadline_ms) }
            }
        }))
    }

    fn start(&self, start: proto::StartAttempt) -> Result<StartAttempt, InvalidField> {
        let runs = range(start.first_run, start.run_count)?;
        let definition = self.0.get(&DefinitionId(start.definition)).ok_or_else(|| {
            let problem = format!("{} was not defined", start.definition);
            InvalidField::new("start_attempt.definition", problem)
        })?;
        let batch = start.batch.ok_or_else(|| InvalidField::missing("start_attempt.batch"))?;
        Ok(StartAttempt {
            runner: RunnerId(start.runner),
            incarnation: Incarnation(start.incarnation),
            attempt: AttemptId(start.attempt),
            batch: match batch {
                Batch::BatchNumber(number) => BatchId::Number(number),
                Batch::BatchText(text) => BatchId::Text(text.into()),
            },
            kind: if start.is_eval { BatchType::Eval } else { BatchType::Train },
            task_id: TaskId(start.task_id),
            runs,
            task: compact(start.task),
            definition: Arc::clone(definition),
            timeout: Duration::from_millis(start.timeout_ms),
            suspected_losses: start.suspected_losses,
            model_keys: keys(start.model_keys, runs)?,
        })
    }
}

fn keys(texts: Vec<String>, runs: RunRange) -> Result<Vec<Secret>, InvalidField> {
    let invalid = |problem: String| InvalidField::new("start_attempt.model_keys", problem);
    if !texts.is_empty() && texts.len() != runs.count as usize {
        return Err(invalid(format!("{} for {} runs", texts.len(), runs.count)));
    }
    let key = |text: String| Secret::new(text).map_err(|error| invalid(error.to_string()));
    texts.into_iter().map(key).collect()
}

fn range(first: u32, count: u32) -> Result<RunRange, InvalidField> {
    if count < 1 {
        return Err(InvalidField::missing("start_attempt.run_count"));
    }
    if first.checked_add(count).is_none() {
        let problem = format!("{first} + {count} is too much");
        return Err(InvalidField::new("start_attempt.run_count", problem));
    }
    Ok(RunRange { first, count })
}

impl From<StartAttempt> for proto::StartAttempt {
    fn from(start: StartAttempt) -> Self {
        Self {
            runner: start.runner.0,
            incarnation: start.incarnation.0,
            attempt: start.attempt.0,
            batch: Some(match start.batch {
                BatchId::Number(number) => Batch::BatchNumber(number),
                BatchId::Text(text) => Batch::BatchText(text.to_string()),
            }),
            task_id: start.task_id.0,
            first_run: start.runs.first,
            run_count: start.runs.count,
            task: start.task,
            definition: start.definition.id.0,
            timeout_ms: to_ms(start.timeout),
            is_eval: start.kind == BatchType::Eval,
            suspected_losses: start.suspected_losses,
            model_keys: start.model_keys.iter().map(|key| key.reveal().to_owned()).collect(),
        }
    }
}

impl From<EngineMessage> for proto::EngineMessage {
    /// Converts the message alone, without the definition that it refers to.
    fn from(message: EngineMessage) -> Self {
        let kind = match message {
            EngineMessage::StartAttempt(start) => Kind::StartAttempt(start.into()),
            EngineMessage::CancelAttempt { runner, incarnation, attempt, reason } => {
                let reason = proto_cancel_reason(reason);
                let (runner, incarnation, attempt) = (runner.0, incarnation.0, attempt.0);
                Kind::CancelAttempt(proto::CancelAttempt { runner, incarnation, attempt, reason })
            }
            EngineMessage::StartRunner {
                runner: RunnerId(runner),
                incarnation: Incarnation(incarnation),
            } => Kind::StartRunner(proto::StartRunner { runner, incarnation }),
            EngineMessage::StopRunner {
                runner: RunnerId(runner),
                incarnation: Incarnation(incarnation),
            } => Kind::StopRunner(proto::StopRunner { runner, incarnation }),
            EngineMessage::Shutdown { deadline } => {
                Kind::Shutdown(proto::Shutdown { deadline_ms: to_ms(deadline) })
            }
        };
        Self { kind: Some(kind) }
    }
}

proto_enum! { CancelReason as AttemptCancelReason: cancel_reason, proto_cancel_reason;
    Aborted = [AttemptCancelReason::Runs(CancelReason::Aborted)],
    OverRollout = [AttemptCancelReason::Runs(CancelReason::OverRollout)],
    TimedOut = [AttemptCancelReason::Runs(CancelReason::TimedOut)],
    BatchFailed = [AttemptCancelReason::Runs(CancelReason::BatchFailed)],
    NoRoom = [AttemptCancelReason::Runs(CancelReason::NoRoom)],
    Stopped = [AttemptCancelReason::Runs(CancelReason::Stopped)],
    Requested = [AttemptCancelReason::Runs(CancelReason::Requested)],
    AttemptTimeout = [AttemptCancelReason::Timeout],
    BeginTimeout = [AttemptCancelReason::BeginTimeout],
}

impl From<proto::DefineWorkflow> for WorkflowDefinition {
    fn from(define: proto::DefineWorkflow) -> Self {
        let proto::DefineWorkflow { id, name, encoding, task_encoding, body } = define;
        Self {
            id: DefinitionId(id),
            name: name.into(),
            encoding: encoding.into(),
            task_encoding: task_encoding.into(),
            body: compact(body),
        }
    }
}

impl From<&WorkflowDefinition> for proto::DefineWorkflow {
    fn from(definition: &WorkflowDefinition) -> Self {
        Self {
            id: definition.id.0,
            name: definition.name.to_string(),
            encoding: definition.encoding.to_string(),
            task_encoding: definition.task_encoding.to_string(),
            body: definition.body.clone(),
        }
    }
}

impl TryFrom<proto::Welcome> for Welcome {
    type Error = InvalidField;

    fn try_from(welcome: proto::Welcome) -> Result<Self, InvalidField> {
        let proto::Welcome { protocol, runners, heartbeat_interval_ms, limits, env } = welcome;
        if heartbeat_interval_ms < 1 {
            return Err(InvalidField::missing("welcome.heartbeat_interval_ms"));
        }
        let limits = limits.ok_or_else(|| InvalidField::missing("welcome.limits"))?;
        let proto::Limits { max_message_bytes, max_definitions } = limits;
        if max_message_bytes < 1 {
            return Err(InvalidField::missing("welcome.limits.max_message_bytes"));
        }
        let runner =
            |it: proto::RunnerIncarnation| (RunnerId(it.runner), Incarnation(it.incarnation));
        Ok(Self {
            protocol,
            runners: runners.into_iter().map(runner).collect(),
            heartbeat_interval: Duration::from_millis(heartbeat_interval_ms),
            max_message_bytes,
            max_definitions,
            env,
        })
    }
}

impl From<Welcome> for proto::EngineMessage {
    fn from(welcome: Welcome) -> Self {
        let Welcome { protocol, runners, max_message_bytes, max_definitions, env, .. } = welcome;
        let runner = |(RunnerId(runner), Incarnation(incarnation))| proto::RunnerIncarnation {
            runner,
            incarnation,
        };
        let welcome = proto::Welcome {
            protocol,
            runners: runners.into_iter().map(runner).collect(),
            heartbeat_interval_ms: to_ms(welcome.heartbeat_interval).max(1),
            limits: Some(proto::Limits { max_message_bytes, max_definitions }),
            env,
        };
        Self { kind: Some(Kind::Welcome(welcome)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ranges_are_not_empty_and_do_not_overflow() {
        assert_eq!(range(3, 2), Ok(RunRange { first: 3, count: 2 }));
        assert_eq!(range(3, 0).unwrap_err().field, "start_attempt.run_count");
        assert_eq!(range(u32::MAX, 1).unwrap_err().field, "start_attempt.run_count");
    }

    #[test]
    fn an_attempt_has_one_key_per_run_or_none() {
        let mut definitions = DefinitionCache::default();
        definitions
            .resolve(Kind::DefineWorkflow(proto::DefineWorkflow::default()))
            .expect("a definition");
        let mut start = |keys: &[&str]| {
            let start = proto::StartAttempt {
                batch: Some(Batch::BatchNumber(1)),
                run_count: 2,
                model_keys: keys.iter().map(ToString::to_string).collect(),
                ..proto::StartAttempt::default()
            };
            definitions.resolve(Kind::StartAttempt(start))
        };
        for valid in [&[][..], &["a", "b"]] {
            let Ok(Some(EngineMessage::StartAttempt(start))) = start(valid) else {
                panic!("{valid:?} is refused")
            };
            let keys: Vec<&str> = start.model_keys.iter().map(Secret::reveal).collect();
            assert_eq!(keys, valid);
            assert!(valid.iter().all(|key| !format!("{start:?}").contains(&format!("\"{key}\""))));
        }
        for invalid in [&["a"][..], &["a", "b", "c"], &["a", ""]] {
            let error = start(invalid).expect_err("keys that do not fit");
            assert!(error.to_string().contains("model_keys"), "{error}");
        }
    }
}
