//! vLLM: token ids by `return_token_ids`.
//!
//! - Chat: `prompt_token_ids` at the top of a full response and of the first event of each choice;
//!   `token_ids` and `logprobs.content` in every choice and chunk, token by token.
//! - Completions: `prompt_token_ids` in every choice, or in its first chunk.
//! - Unrequested fields are null. An empty `delta` is sent only for its token ids, and dropped for
//!   clients that did not request them.
//! - Some versions report weight versions as spans of tokens (`weight_versions`) with the last
//!   chunk.
//! - The request id is `request_id` (a header `X-Request-Id` would override it). The server adds
//!   the endpoint and, for completions, the index of the prompt; `/abort_requests` takes that name.
//!
//! The `system_fingerprint` of a stream comes with the usage, which the gateway requests: clients
//! that did not request usage get neither.

mod exact;

use rollway_core::sync::TransferGroup;
use serde_json::{Value, json};

use self::exact::VllmExactPrompt;
use super::chunk_parser::{
    ChunkParser, ResponseFields, StripPlan, ask_logprobs, ask_usage, forward, logprobs, outgoing,
};
use super::control::tensor_column;
use super::exact_prompt::rendering_body;
use super::json_fields::JsonFields;
use super::response_builder::{ChoiceDelta, ReportedSpan, ReportedVersion};
use super::token_count::TokenizeLookup;
use super::{
    ControlEndpoint, ControlStep, EndpointPurpose, ExactPrompt, LoadMetrics, PauseMode,
    PromptLookup, RecordedPrefix, ResponseParser, ServerApi, UpstreamBody, WeightControl,
};
use crate::model_call::{CallKind, ModelCall};

const DEV_MODE: &str = "start vLLM with VLLM_SERVER_DEV_MODE=1";
const NEW_DEV_MODE: &str = "start a vLLM that has it, such as 0.32.0, with VLLM_SERVER_DEV_MODE=1";

const fn endpoint(
    path: &'static str,
    purpose: EndpointPurpose,
    provided_by: &'static str,
) -> ControlEndpoint {
    ControlEndpoint { path, purpose, provided_by }
}

const ENDPOINTS: &[ControlEndpoint] = &[
    endpoint("/collective_rpc", EndpointPurpose::LoadFolder, DEV_MODE),
    endpoint("/pause", EndpointPurpose::Pause, NEW_DEV_MODE),
    endpoint("/resume", EndpointPurpose::Pause, NEW_DEV_MODE),
    endpoint("/is_paused", EndpointPurpose::PauseState, NEW_DEV_MODE),
    endpoint("/weight_info", EndpointPurpose::Version, NEW_DEV_MODE),
    endpoint("/update_weight_version", EndpointPurpose::Version, NEW_DEV_MODE),
    endpoint("/start_weight_update", EndpointPurpose::Transfer, NEW_DEV_MODE),
    endpoint("/abort_requests", EndpointPurpose::AbortRequest, NEW_DEV_MODE),
];

const LOAD_METRICS: LoadMetrics = LoadMetrics {
    path: "/metrics",
    running: &["vllm:num_requests_running"],
    waiting: &["vllm:num_requests_waiting"],
    cache_usage: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
    preemptions: &["vllm:num_preemptions_total"],
};

#[derive(Debug)]
pub(super) struct VllmApi;

impl ServerApi for VllmApi {
    fn upstream_body(&self, call: &ModelCall, model: &str, request_id: &str) -> UpstreamBody {
        let mut body = forward(call, model);
        body.insert("request_id".to_owned(), request_id.into());
        body.insert("return_token_ids".to_owned(), true.into());
        ask_logprobs(call, &mut body);
        if call.stream {
            ask_usage(&mut body);
        }
        outgoing(call, body, call.stream)
    }

    fn response_parser(&self, call: &ModelCall, id: &str, model: &str) -> Box<dyn ResponseParser> {
        Box::new(ChunkParser::new(&Self, StripPlan::new(call, true), call, id, model))
    }

    fn abort_body(&self, kind: CallKind, request_id: &str) -> Option<UpstreamBody> {
        let ids = match kind {
            // The second one if it has an exact prompt.
            CallKind::Chat => {
                vec![format!("chatcmpl-{request_id}"), format!("generate-tokens-{request_id}")]
            }
            CallKind::Completion => vec![format!("cmpl-{request_id}-0")],
        };
        let body = json!({ "request_ids": ids });
        Some(UpstreamBody { path: "/abort_requests", body, stream: false })
    }

    fn token_count(&self, call: &ModelCall, model: &str) -> Option<Box<dyn PromptLookup>> {
        let body = rendering_body(&forward(call, model)).into();
        Some(Box::new(TokenizeLookup(UpstreamBody { path: "/tokenize", body, stream: false })))
    }

    fn detokenize(&self, token: i32, model: &str) -> Option<(UpstreamBody, &'static str)> {
        let body = json!({ "model": model, "tokens": [token] });
        Some((UpstreamBody { path: "/detokenize", body, stream: false }, "prompt"))
    }

    /// Stop strings are cut from the text of a chat, but not from parsed tokens.
    fn exact_prompt(
        &self,
        call: &ModelCall,
        model: &str,
        request_id: &str,
        prefix: RecordedPrefix,
    ) -> Option<Box<dyn ExactPrompt>> {
        if call.kind != CallKind::Chat || call.has("stop") {
            return None;
        }
        let UpstreamBody { body: Value::Object(chat), .. } =
            self.upstream_body(call, model, request_id)
        else {
            return None;
        };
        Some(Box::new(VllmExactPrompt::new(chat, request_id, prefix)))
    }

    fn version_paths(&self) -> &'static [&'static str] {
        &["/weight_info"]
    }

    fn version_name<'a>(&self, reply: &'a Value) -> Option<&'a str> {
        Some(reply.get("weight_version").and_then(Value::as_str).unwrap_or_default())
    }

    fn load_metrics(&self) -> Option<&'static LoadMetrics> {
        Some(&LOAD_METRICS)
    }

    fn control_endpoints(&self) -> &'static [ControlEndpoint] {
        ENDPOINTS
    }

    fn refuses_unknown_models(&self) -> bool {
        true
    }

    fn weight_control(&self) -> Result<&'static dyn WeightControl, &'static str> {
        Ok(&Self)
    }
}

/// Endpoints that the server has when started with `VLLM_SERVER_DEV_MODE=1`.
impl WeightControl for VllmApi {
    /// Pauses the scheduler and clears the prefix cache of the old weights. This happens before the
    /// new weights are loaded, so that a failure has changed nothing. Kept requests are recomputed
    /// from their tokens.
    fn pause(&self, mode: PauseMode) -> Vec<ControlStep> {
        let path = match mode {
            // Requests that bypass the gateway are not aborted.
            PauseMode::Empty | PauseMode::Keep => "/pause?mode=keep",
            PauseMode::Abort => "/pause?mode=abort",
        };
        let hint = Some("start vLLM with VLLM_SERVER_DEV_MODE=1 to update its weights");
        let reset = "/reset_prefix_cache?reset_running_requests=true";
        vec![
            ControlStep { hint, ..ControlStep::new(path, json!({})) }.optional(),
            ControlStep::new(reset, json!({})),
        ]
    }

    fn resume(&self, _: PauseMode) -> Vec<ControlStep> {
        vec![ControlStep::new("/resume", json!({})).optional()]
    }

    fn pause_state_path(&self) -> Option<&'static str> {
        Some("/is_paused")
    }

    fn sleep_state_path(&self) -> Option<&'static str> {
        Some("/is_sleeping")
    }

    fn load(&self, path: &str, version: u64) -> Vec<ControlStep> {
        let reload = json!({ "method": "reload_weights", "kwargs": { "weights_path": path } });
        let name = json!({ "new_version": version.to_string() });
        let hint = Some(DEV_MODE);
        vec![
            ControlStep { hint, ..ControlStep::new("/collective_rpc", reload) },
            ControlStep::after_change("/update_weight_version", name).optional(),
        ]
    }

    fn receive(&self, group: &TransferGroup, version: u64, rank: u32) -> Vec<ControlStep> {
        let mut steps = Vec::new();
        if group.join {
            let init = json!({ "init_info": {
                "master_address": group.master_address,
                "master_port": group.master_port,
                "rank_offset": rank,
                "world_size": group.world_size,
            }});
            steps.push(ControlStep::new("/init_weight_transfer_engine", init));
        }
        let update = json!({ "update_info": {
            "names": tensor_column(group, |tensor| json!(tensor.name)),
            "dtype_names": tensor_column(group, |tensor| json!(tensor.dtype)),
            "shapes": tensor_column(group, |tensor| json!(tensor.shape)),
        }});
        let finish = json!({ "weight_version": version.to_string() });
        steps.push(ControlStep::new("/start_weight_update", json!({})));
        steps.push(ControlStep::after_change("/update_weights", update));
        steps.push(ControlStep::after_change("/finish_weight_update", finish));
        steps
    }
}

impl ResponseFields for VllmApi {
    fn top(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        let prompt = fields.get("prompt_token_ids")?;
        if !plan.keeps_token_ids {
            fields.blank("prompt_token_ids");
        }
        Ok(ChoiceDelta { prompt, ..ChoiceDelta::default() })
    }

    fn choice(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        let part = ChoiceDelta {
            tokens: fields.get("token_ids")?,
            logprobs: logprobs(plan.kind, fields)?,
            prompt: fields.get("prompt_token_ids")?,
            version: fields.get::<Value>("weight_version")?.as_ref().map(ReportedVersion::read),
            spans: fields.get::<Vec<ReportedSpan>>("weight_versions")?,
            ..ChoiceDelta::default()
        };
        if !plan.keeps_token_ids {
            fields.blank("token_ids");
            fields.blank("prompt_token_ids");
        }
        if !plan.keeps_logprobs {
            fields.blank("logprobs");
        }
        if let Some(tokens) = part.tokens.as_ref().map(Vec::len) {
            let logprobs = part.logprobs.as_ref().map_or(0, Vec::len);
            if tokens != logprobs {
                return Err(format!("{tokens} tokens came with {logprobs} log-probabilities"));
            }
        }
        Ok(part)
    }
}
