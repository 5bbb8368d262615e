//! Model calls of a run, and the turns recorded of it.

use std::time::Instant;

use bytes::Bytes;
use rollway_core::FailureKind;
use rollway_core::metrics::{Metrics, run_metrics};
use rollway_engine::{RunContext, RunFailure, RunModel, RunOutcome, RunOutput};
use rollway_experience::{Experience, deserialize_many, serialize_many};
use serde_json::{Map, Value};

use crate::client::{Answer, Client};

const NO_TURNS: &str = "the workflow returned a reward, but no turn of the model was recorded";

/// Client of the trained model for one run.
pub(super) struct RunModelClient<'a> {
    client: &'a Client,
    model: &'a RunModel,
    began: Instant,
}

impl<'a> RunModelClient<'a> {
    pub(super) fn new(client: &'a Client, context: &'a RunContext) -> Result<Self, RunFailure> {
        let Some(model) = &context.model else {
            let message = "the run has no key to a model: it was started without a gateway";
            return Err(RunFailure::new(FailureKind::Workflow, message));
        };
        Ok(Self { client, model, began: Instant::now() })
    }

    /// Sends messages to the trained model and returns the completion.
    pub(super) async fn chat(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        arguments: &Map<String, Value>,
    ) -> Result<String, RunFailure> {
        let body = body(messages, tools, arguments);
        let url = format!("{}/chat/completions", self.model.base_url);
        let answer = self.call(&url, Some(body.to_string().into())).await?;
        let answer: Value = serde_json::from_slice(&answer.body)?;
        let Some(choice) = answer["choices"].get(0) else {
            let message = "the response of the model has no choices";
            return Err(RunFailure::new(FailureKind::Workflow, message));
        };
        Ok(choice["message"]["content"].as_str().unwrap_or_default().to_owned())
    }

    /// Ends the run with a reward: its recorded turns become experiences.
    pub(super) async fn rewarded(
        &self,
        context: &RunContext,
        index: Option<&Value>,
        reward: f64,
    ) -> RunOutcome {
        context.stage("encoding");
        let mut experiences = match context.task.is_eval {
            // Eval runs yield no experiences.
            true => Vec::new(),
            false => self.recorded().await?,
        };
        for experience in &mut experiences {
            experience.reward = Some(reward);
            stamp(experience, context, index).map_err(unwritable)?;
        }
        let carried = experiences.iter().map(|experience| {
            let own = experience.metrics.iter().map(|(name, value)| (name.as_str(), *value));
            own.chain([("reward", reward)]).collect()
        });
        let mut carried: Vec<Metrics> = carried.collect();
        if carried.is_empty() {
            carried.push([("reward", reward)].into_iter().collect());
        }
        let payload = match (experiences.is_empty(), context.task.is_eval) {
            (_, true) => None,
            (true, false) => return Err(RunFailure::new(FailureKind::InvalidOutput, NO_TURNS)),
            (false, false) => Some(serialize_many(&experiences).map_err(unwritable)?),
        };
        let metrics = run_metrics(&carried, self.began.elapsed().as_secs_f64());
        Ok(RunOutput { payload, metrics })
    }

    async fn recorded(&self) -> Result<Vec<Experience>, RunFailure> {
        let base = &self.model.base_url;
        let root = base.strip_suffix("/v1").unwrap_or(base);
        let answer = self.call(&format!("{root}/rollway/v1/run/experiences?since=0"), None).await?;
        deserialize_many(answer.body).map_err(|error| {
            let message = format!("the recorded turns cannot be read: {error}");
            RunFailure::new(FailureKind::InvalidOutput, message)
        })
    }

    async fn call(&self, url: &str, body: Option<Bytes>) -> Result<Answer, RunFailure> {
        let called = self.client.call(url, self.model.api_key.reveal(), body).await;
        let answer =
            called.map_err(|message| RunFailure::new(FailureKind::ModelUnavailable, message))?;
        if answer.status == 200 { Ok(answer) } else { Err(refusal(&answer)) }
    }
}

/// Returns the request body. Null arguments are left out; every call has one choice.
fn body(messages: &[Value], tools: Option<&Value>, arguments: &Map<String, Value>) -> Value {
    let given = arguments.iter().filter(|(_, value)| !value.is_null());
    let mut body: Map<_, _> = given.map(|(name, value)| (name.clone(), value.clone())).collect();
    // Some engines give the number of alternatives.
    if let Some(alternatives) = body.get("logprobs").and_then(Value::as_u64) {
        body.insert("logprobs".to_owned(), true.into());
        if alternatives > 0 {
            body.entry("top_logprobs").or_insert(alternatives.into());
        }
    }
    if let Some(tools) = tools {
        body.insert("tools".to_owned(), tools.clone());
    }
    body.insert("messages".to_owned(), messages.into());
    body.insert("n".to_owned(), 1.into());
    Value::Object(body)
}

/// Sets batch, task and run of an experience.
fn stamp(
    experience: &mut Experience,
    context: &RunContext,
    index: Option<&Value>,
) -> Result<(), impl std::fmt::Display> {
    let eid = &mut experience.eid;
    eid.batch = (&context.batch).into();
    eid.task = i64::from(context.task_id.0).into();
    eid.run = context.run.0.into();
    let index = index.cloned().unwrap_or_else(|| Map::new().into());
    let entries = [("use_count", 0.into()), ("task_index", index)];
    experience.info.insert(entries.map(|(name, value)| (name.to_owned(), value)))
}

/// Converts an error response of the gateway.
fn refusal(answer: &Answer) -> RunFailure {
    let error = serde_json::from_slice::<Value>(&answer.body).unwrap_or_default();
    let message = match error["error"]["message"].as_str() {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(&answer.body).chars().take(1000).collect(),
    };
    let (kind, message) = match answer.status {
        429 | 502 | 503 | 504 => {
            (FailureKind::ModelUnavailable, format!("the model is unavailable: {message}"))
        }
        409 => (FailureKind::InvalidOutput, message),
        status => {
            (FailureKind::Workflow, format!("the model refused the call ({status}): {message}"))
        }
    };
    RunFailure::new(kind, message)
}

fn unwritable(error: impl std::fmt::Display) -> RunFailure {
    let message = format!("the experiences cannot be encoded: {error}");
    RunFailure::new(FailureKind::InvalidOutput, message)
}
