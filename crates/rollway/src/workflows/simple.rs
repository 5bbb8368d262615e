//! `simple_workflow`: asks the question of the row once, and has the answer judged.

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

/// How many reward functions are kept ready.
const MAX_REWARDS: usize = 64;

/// The workflow. Its runs share connections.
#[derive(Debug, Default)]
pub(super) struct SimpleWorkflow {
    client: Client,
    rewards: Mutex<HashMap<String, Arc<RewardFn>>>,
}

/// As much of a task as it needs.
#[derive(Debug, Deserialize)]
struct Question {
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
        Box::pin(async move { self.ask(&context).await })
    }
}

impl SimpleWorkflow {
    async fn ask(&self, context: &RunContext) -> RunOutcome {
        let question: Question = serde_json::from_slice(&context.task.body)?;
        let reward = self.reward(question.reward_fn.as_deref(), &question.reward_fn_args)?;
        if question.messages.is_empty() {
            let words = "the task asks nothing: its row has no prompt and no messages";
            return Err(RunFailure::new(FailureKind::Workflow, words));
        }
        let ask = RunModelClient::new(&self.client, context)?;
        let Question { messages, tools, rollout_args, .. } = &question;
        let text = ask.chat(messages, tools.as_ref(), rollout_args).await?;
        context.stage("rewarding");
        let reward = reward.of(&text, question.response.as_ref()).map_err(wrong)?;
        ask.rewarded(context, question.index.as_ref(), reward).await
    }

    /// Returns a reward function, made once.
    fn reward(&self, name: Option<&str>, args: &Args) -> Result<Arc<RewardFn>, RunFailure> {
        let name = name.ok_or_else(|| wrong("the task names no reward function".to_owned()))?;
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

fn wrong(words: String) -> RunFailure {
    RunFailure::new(FailureKind::Workflow, words)
}
