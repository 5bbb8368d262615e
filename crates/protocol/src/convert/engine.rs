//! What the engine says, and the definitions that travel only once.

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

/// The definitions that a worker was sent, and so the way from what the engine sends to what the
/// worker has to do.
#[derive(Debug, Default)]
pub(crate) struct DefinitionCache(BTreeMap<DefinitionId, Arc<WorkflowDefinition>>);

impl DefinitionCache {
    /// Returns what is to be done, if anything.
    pub(crate) fn resolve(&mut self, kind: Kind) -> Result<Option<EngineMessage>, InvalidField> {
        Ok(Some(match kind {
            Kind::Welcome(_) => return Err(InvalidField::new("welcome", "only the first message")),
            Kind::Refused(_) => return Err(InvalidField::new("refused", "only the last message")),
            Kind::Define(define) => {
                let definition = WorkflowDefinition::from(define);
                self.0.insert(definition.id, definition.into());
                return Ok(None);
            }
            Kind::Forget(proto::Forget { ids }) => {
                for id in ids {
                    self.0.remove(&DefinitionId(id));
                }
                return Ok(None);
            }
            Kind::StartAttempt(start) => EngineMessage::StartAttempt(self.start(start)?),
            Kind::CancelAttempt(cancel) => {
                let proto::CancelAttempt { runner, life, attempt, reason } = cancel;
                EngineMessage::CancelAttempt {
                    runner: RunnerId(runner),
                    life: Incarnation(life),
                    attempt: AttemptId(attempt),
                    reason: cancel_reason(reason)?,
                }
            }
            Kind::StartRunner(proto::StartRunner { runner, life }) => {
                EngineMessage::StartRunner { runner: RunnerId(runner), life: Incarnation(life) }
            }
            Kind::StopRunner(proto::StopRunner { runner, life }) => {
                EngineMessage::StopRunner { runner: RunnerId(runner), life: Incarnation(life) }
            }
            Kind::Shutdown(proto::Shutdown { deadline_ms }) => {
                EngineMessage::Shutdown { deadline: Duration::from_millis(deadline_ms) }
            }
        }))
    }

    fn start(&self, start: proto::StartAttempt) -> Result<StartAttempt, InvalidField> {
        let proto::StartAttempt {
            runner,
            life,
            attempt,
            batch,
            task_id,
            first_run,
            run_count,
            task,
            definition,
            timeout_ms,
            is_eval,
            kills,
            model_keys,
        } = start;
        let runs = range(first_run, run_count)?;
        let definition = self.0.get(&DefinitionId(definition)).ok_or_else(|| {
            let problem = format!("{definition} was not defined");
            InvalidField::new("start_attempt.definition", problem)
        })?;
        Ok(StartAttempt {
            runner: RunnerId(runner),
            life: Incarnation(life),
            attempt: AttemptId(attempt),
            batch: match batch.ok_or_else(|| InvalidField::missing("start_attempt.batch"))? {
                Batch::BatchNumber(number) => BatchId::Number(number),
                Batch::BatchText(text) => BatchId::Text(text.into()),
            },
            kind: if is_eval { BatchType::Eval } else { BatchType::Train },
            task_id: TaskId(task_id),
            runs,
            task: compact(task),
            definition: Arc::clone(definition),
            timeout: Duration::from_millis(timeout_ms),
            kills,
            model_keys: keys(model_keys, runs)?,
        })
    }
}

fn keys(texts: Vec<String>, runs: RunRange) -> Result<Vec<Secret>, InvalidField> {
    let wrong = |problem: String| InvalidField::new("start_attempt.model_keys", problem);
    if !texts.is_empty() && texts.len() != runs.count as usize {
        return Err(wrong(format!("{} for {} runs", texts.len(), runs.count)));
    }
    let key = |text: String| Secret::new(text).map_err(|error| wrong(error.to_string()));
    texts.into_iter().map(key).collect()
}

fn range(first: u32, count: u32) -> Result<RunRange, InvalidField> {
    if count < 1 {
        return Err(InvalidField::missing("start_attempt.run_count"));
    }
    if first.checked_add(count).is_none() {
        return Err(InvalidField::new(
            "start_attempt.run_count",
            format!("{first} + {count} is too much"),
        ));
    }
    Ok(RunRange { first, count })
}

impl From<StartAttempt> for proto::StartAttempt {
    fn from(start: StartAttempt) -> Self {
        let StartAttempt {
            runner: RunnerId(runner),
            life: Incarnation(life),
            attempt: AttemptId(attempt),
            batch,
            kind,
            task_id: TaskId(task_id),
            runs: RunRange { first, count },
            task,
            definition,
            timeout,
            kills,
            model_keys,
        } = start;
        Self {
            runner,
            life,
            attempt,
            batch: Some(match batch {
                BatchId::Number(number) => Batch::BatchNumber(number),
                BatchId::Text(text) => Batch::BatchText(text.to_string()),
            }),
            task_id,
            first_run: first,
            run_count: count,
            task,
            definition: definition.id.0,
            timeout_ms: to_ms(timeout),
            is_eval: match kind {
                BatchType::Train => false,
                BatchType::Eval => true,
            },
            kills,
            model_keys: model_keys.iter().map(|key| key.reveal().to_owned()).collect(),
        }
    }
}

impl From<EngineMessage> for proto::EngineMessage {
    /// Converts the message alone: a definition that it refers to travels by itself.
    fn from(message: EngineMessage) -> Self {
        let kind = match message {
            EngineMessage::StartAttempt(start) => Kind::StartAttempt(start.into()),
            EngineMessage::CancelAttempt { runner, life, attempt, reason } => {
                Kind::CancelAttempt(proto::CancelAttempt {
                    runner: runner.0,
                    life: life.0,
                    attempt: attempt.0,
                    reason: proto_reason(reason).into(),
                })
            }
            EngineMessage::StartRunner { runner: RunnerId(runner), life: Incarnation(life) } => {
                Kind::StartRunner(proto::StartRunner { runner, life })
            }
            EngineMessage::StopRunner { runner: RunnerId(runner), life: Incarnation(life) } => {
                Kind::StopRunner(proto::StopRunner { runner, life })
            }
            EngineMessage::Shutdown { deadline } => {
                Kind::Shutdown(proto::Shutdown { deadline_ms: to_ms(deadline) })
            }
        };
        Self { kind: Some(kind) }
    }
}

fn cancel_reason(reason: i32) -> Result<AttemptCancelReason, InvalidField> {
    Ok(match proto::CancelReason::try_from(reason) {
        Ok(proto::CancelReason::Aborted) => AttemptCancelReason::Runs(CancelReason::Aborted),
        Ok(proto::CancelReason::OverRollout) => {
            AttemptCancelReason::Runs(CancelReason::OverRollout)
        }
        Ok(proto::CancelReason::TimedOut) => AttemptCancelReason::Runs(CancelReason::TimedOut),
        Ok(proto::CancelReason::BatchFailed) => {
            AttemptCancelReason::Runs(CancelReason::BatchFailed)
        }
        Ok(proto::CancelReason::NoRoom) => AttemptCancelReason::Runs(CancelReason::NoRoom),
        Ok(proto::CancelReason::Stopped) => AttemptCancelReason::Runs(CancelReason::Stopped),
        Ok(proto::CancelReason::Requested) => AttemptCancelReason::Runs(CancelReason::Requested),
        Ok(proto::CancelReason::AttemptTimeout) => AttemptCancelReason::Timeout,
        Ok(proto::CancelReason::NotBegun) => AttemptCancelReason::BeginTimeout,
        Ok(proto::CancelReason::Unspecified) | Err(_) => {
            return Err(InvalidField::unknown("cancel_attempt.reason", reason));
        }
    })
}

fn proto_reason(reason: AttemptCancelReason) -> proto::CancelReason {
    match reason {
        AttemptCancelReason::Runs(CancelReason::Aborted) => proto::CancelReason::Aborted,
        AttemptCancelReason::Runs(CancelReason::OverRollout) => proto::CancelReason::OverRollout,
        AttemptCancelReason::Runs(CancelReason::TimedOut) => proto::CancelReason::TimedOut,
        AttemptCancelReason::Runs(CancelReason::BatchFailed) => proto::CancelReason::BatchFailed,
        AttemptCancelReason::Runs(CancelReason::NoRoom) => proto::CancelReason::NoRoom,
        AttemptCancelReason::Runs(CancelReason::Stopped) => proto::CancelReason::Stopped,
        AttemptCancelReason::Runs(CancelReason::Requested) => proto::CancelReason::Requested,
        AttemptCancelReason::Timeout => proto::CancelReason::AttemptTimeout,
        AttemptCancelReason::BeginTimeout => proto::CancelReason::NotBegun,
    }
}

impl From<proto::Define> for WorkflowDefinition {
    fn from(define: proto::Define) -> Self {
        let proto::Define { id, name, encoding, task_encoding, body } = define;
        Self {
            id: DefinitionId(id),
            name: name.into(),
            encoding: encoding.into(),
            task_encoding: task_encoding.into(),
            body: compact(body),
        }
    }
}

impl From<&WorkflowDefinition> for proto::Define {
    fn from(definition: &WorkflowDefinition) -> Self {
        let WorkflowDefinition { id: DefinitionId(id), name, encoding, task_encoding, body } =
            definition;
        Self {
            id: *id,
            name: name.to_string(),
            encoding: encoding.to_string(),
            task_encoding: task_encoding.to_string(),
            body: body.clone(),
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
        let runners = runners
            .into_iter()
            .map(|proto::RunnerLife { runner, life }| (RunnerId(runner), Incarnation(life)));
        Ok(Self {
            protocol,
            runners: runners.collect(),
            heartbeat_interval: Duration::from_millis(heartbeat_interval_ms),
            max_message_bytes,
            max_definitions,
            env,
        })
    }
}

impl From<Welcome> for proto::EngineMessage {
    fn from(welcome: Welcome) -> Self {
        let Welcome { protocol, runners, heartbeat_interval, max_message_bytes, .. } = welcome;
        let (max_definitions, env) = (welcome.max_definitions, welcome.env);
        let runners = runners.into_iter();
        let welcome = proto::Welcome {
            protocol,
            runners: runners
                .map(|(runner, life)| proto::RunnerLife { runner: runner.0, life: life.0 })
                .collect(),
            heartbeat_interval_ms: to_ms(heartbeat_interval).max(1),
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
    fn runs_are_some_and_can_be_counted() {
        assert_eq!(range(3, 2), Ok(RunRange { first: 3, count: 2 }));
        assert_eq!(range(3, 0).unwrap_err().field, "start_attempt.run_count");
        assert_eq!(range(u32::MAX, 1).unwrap_err().field, "start_attempt.run_count");
    }

    #[test]
    fn keys_are_one_for_every_run_or_none() {
        let mut definitions = DefinitionCache::default();
        definitions.resolve(Kind::Define(proto::Define::default())).expect("a definition");
        let mut start = |keys: &[&str]| {
            let start = proto::StartAttempt {
                batch: Some(Batch::BatchNumber(1)),
                run_count: 2,
                model_keys: keys.iter().map(ToString::to_string).collect(),
                ..proto::StartAttempt::default()
            };
            definitions.resolve(Kind::StartAttempt(start))
        };
        for good in [&[][..], &["a", "b"]] {
            let Ok(Some(EngineMessage::StartAttempt(start))) = start(good) else {
                panic!("{good:?} is refused")
            };
            let keys: Vec<&str> = start.model_keys.iter().map(Secret::reveal).collect();
            assert_eq!(keys, good);
            assert!(good.iter().all(|key| !format!("{start:?}").contains(&format!("\"{key}\""))));
        }
        for bad in [&["a"][..], &["a", "b", "c"], &["a", ""]] {
            let error = start(bad).expect_err("keys that do not fit");
            assert!(error.to_string().contains("model_keys"), "{error}");
        }
    }
}
