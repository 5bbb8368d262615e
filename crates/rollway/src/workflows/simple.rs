//! `simple_workflow`: one model call per run, rewarded by a reward function.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rollway_config::Args;
use rollway_core::FailureKind;
use rollway_engine::{RunContext, RunFailure, RunFuture, RunOutcome, Workflow};
use serde::Deserialize;
use serde_json::Value;

use super::model_client::RunModelClient;
use super::reward::RewardFn;
use crate::client::Client;

/// Maximum number of cached reward functions.
const MAX_REWARDS: usize = 64;

/// The workflow. Runs share connections.
#[derive(Debug, Default)]
pub(super) struct SimpleWorkflow {
    client: Client,
    rewards: Mutex<HashMap<String, Arc<RewardFn>>>,
}

/// Fields of a task that the workflow uses.
#[derive(Debug, Deserialize)]
struct TaskFields {
    #[serde(default)]
    messages: Vec<Value>,
    response: Option<Value>,
    tools: Option<Value>,
    index: Option<Value>,
    #[serde(default)]
    rollout_args: Args,
    reward_fn: Option<String>,
    #[serde(default)]
    reward_fn_args: Args,
}

impl Workflow for SimpleWorkflow {
    fn run(&self, context: RunContext) -> RunFuture<'_> {
        Box::pin(async move { self.execute(&context).await })
    }
}

impl SimpleWorkflow {
    async fn execute(&self, context: &RunContext) -> RunOutcome {
        let fields: TaskFields = serde_json::from_slice(&context.task.body)?;
        let reward = self.reward(fields.reward_fn.as_deref(), &fields.reward_fn_args)?;
        if fields.messages.is_empty() {
            let message = "the task has no prompt: its row has no prompt and no messages";
            return Err(RunFailure::new(FailureKind::Workflow, message));
        }
        let model = RunModelClient::new(&self.client, context)?;
        let TaskFields { messages, tools, rollout_args, .. } = &fields;
        let text = model.chat(messages, tools.as_ref(), rollout_args).await?;
        context.stage("rewarding");
        let reward = reward.of(&text, fields.response.as_ref()).map_err(wrong)?;
        model.rewarded(context, fields.index.as_ref(), reward).await
    }

    /// Returns a reward function from the cache.
    fn reward(&self, name: Option<&str>, args: &Args) -> Result<Arc<RewardFn>, RunFailure> {
        let name = name.ok_or_else(|| wrong("the task has no reward function".to_owned()))?;
        let key = format!("{name} {}", Value::Object(args.clone()));
        let mut rewards = self.rewards.lock();
        if let Some(reward) = rewards.get(&key) {
            return Ok(Arc::clone(reward));
        }
        let reward = Arc::new(RewardFn::named(name, args)?);
        if rewards.len() >= MAX_REWARDS {
            rewards.clear();
        }
        rewards.insert(key, Arc::clone(&reward));
        Ok(reward)
    }
}

fn wrong(message: String) -> RunFailure {
    RunFailure::new(FailureKind::Workflow, message)
}
