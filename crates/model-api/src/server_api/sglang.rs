//! SGLang: token ids in `meta_info`.
//!
//! - Chat: `return_meta_info` and `logprobs` return `output_token_logprobs` (`[log-probability,
//!   token id, text or null]`) and versions in the `meta_info` of every choice,
//!   `return_prompt_token_ids` the prompt. The server refuses them for streams, so that full
//!   responses are requested and streams synthesized.
//! - Completions: `return_token_ids` returns `token_ids` and `prompt_token_ids` in every choice,
//!   also in streams. Only full responses have versions, at the top (`metadata`), of the first
//!   choice.
//! - A `weight_version` without spans (`weight_versions`) is the one at the end. It labels all
//!   tokens if the gateway knows of no other since the request; otherwise the version is unknown.
//! - Unrequested fields are absent, except for `logprobs`, which is null.
//! - The request id is `rid`, which `/abort_request` takes.

mod exact;

use rollway_core::sync::TransferGroup;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use self::exact::SglangExactPrompt;
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

const NEWER: &str = "use a newer SGLang, such as 0.5.23";

const fn endpoint(path: &'static str, purpose: EndpointPurpose) -> ControlEndpoint {
    ControlEndpoint { path, purpose, provided_by: NEWER }
}

const ENDPOINTS: &[ControlEndpoint] = &[
    endpoint("/update_weights_from_disk", EndpointPurpose::LoadFolder),
    endpoint("/pause_generation", EndpointPurpose::Pause),
    endpoint("/continue_generation", EndpointPurpose::Pause),
    endpoint("/update_weights_from_distributed", EndpointPurpose::Transfer),
    endpoint("/abort_request", EndpointPurpose::AbortRequest),
];

/// With `--enable-metrics`.
const LOAD_METRICS: LoadMetrics = LoadMetrics {
    path: "/metrics",
    running: &["sglang:num_running_reqs"],
    waiting: &["sglang:num_queue_reqs"],
    cache_usage: &["sglang:token_usage"],
    preemptions: &["sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"],
};

#[derive(Debug)]
pub(super) struct SglangApi;

impl ServerApi for SglangApi {
    fn upstream_body(&self, call: &ModelCall, model: &str, request_id: &str) -> UpstreamBody {
        let mut body = forward(call, model);
        body.insert("rid".to_owned(), request_id.into());
        ask_logprobs(call, &mut body);
        match call.kind {
            CallKind::Chat => {
                body.insert("return_meta_info".to_owned(), true.into());
                body.insert("return_prompt_token_ids".to_owned(), true.into());
                body.insert("stream".to_owned(), false.into());
                body.remove("stream_options");
                outgoing(call, body, false)
            }
            CallKind::Completion => {
                body.insert("return_token_ids".to_owned(), true.into());
                if call.stream {
                    ask_usage(&mut body);
                }
                outgoing(call, body, call.stream)
            }
        }
    }

    fn response_parser(&self, call: &ModelCall, id: &str, model: &str) -> Box<dyn ResponseParser> {
        Box::new(ChunkParser::new(&Self, StripPlan::new(call, true), call, id, model))
    }

    fn abort_body(&self, _: CallKind, request_id: &str) -> Option<UpstreamBody> {
        let body = json!({ "rid": request_id });
        Some(UpstreamBody { path: "/abort_request", body, stream: false })
    }

    fn token_count(&self, call: &ModelCall, model: &str) -> Option<Box<dyn PromptLookup>> {
        let body = rendering_body(&forward(call, model)).into();
        Some(Box::new(TokenizeLookup(UpstreamBody { path: "/v1/tokenize", body, stream: false })))
    }

    fn detokenize(&self, token: i32, model: &str) -> Option<(UpstreamBody, &'static str)> {
        let body = json!({ "model": model, "tokens": [token], "skip_special_tokens": false });
        Some((UpstreamBody { path: "/v1/detokenize", body, stream: false }, "text"))
    }

    fn exact_prompt(
        &self,
        call: &ModelCall,
        model: &str,
        request_id: &str,
        prefix: RecordedPrefix,
    ) -> Option<Box<dyn ExactPrompt>> {
        let is_chat = call.kind == CallKind::Chat;
        let chat = is_chat.then(|| self.upstream_body(call, model, request_id))?;
        Some(Box::new(SglangExactPrompt::new(chat, prefix)))
    }

    /// Newer servers first.
    fn version_paths(&self) -> &'static [&'static str] {
        &["/model_info", "/get_weight_version", "/get_model_info"]
    }

    fn load_metrics(&self) -> Option<&'static LoadMetrics> {
        Some(&LOAD_METRICS)
    }

    fn control_endpoints(&self) -> &'static [ControlEndpoint] {
        ENDPOINTS
    }

    fn weight_control(&self) -> Result<&'static dyn WeightControl, &'static str> {
        Ok(&Self)
    }
}

impl WeightControl for SglangApi {
    /// An empty server is not paused: it loads weights between requests.
    fn pause(&self, mode: PauseMode) -> Vec<ControlStep> {
        let mode = match mode {
            PauseMode::Empty => return Vec::new(),
            // Kept requests return to the queue, so that the caches of the old weights can be
            // cleared; they are recomputed from their tokens.
            PauseMode::Keep => "retract",
            PauseMode::Abort => "abort",
        };
        vec![ControlStep::new("/pause_generation", json!({ "mode": mode })).optional()]
    }

    fn resume(&self, mode: PauseMode) -> Vec<ControlStep> {
        match mode {
            PauseMode::Empty => Vec::new(),
            PauseMode::Keep | PauseMode::Abort => {
                vec![ControlStep::new("/continue_generation", json!({})).optional()]
            }
        }
    }

    /// The server itself rolls a failed load back, and refuses it.
    fn load(&self, path: &str, version: u64) -> Vec<ControlStep> {
        let load = json!({
            "model_path": path,
            "abort_all_requests": false,
            "weight_version": version.to_string(),
            "flush_cache": true,
        });
        vec![ControlStep::new("/update_weights_from_disk", load)]
    }

    fn receive(&self, group: &TransferGroup, version: u64, rank: u32) -> Vec<ControlStep> {
        let mut steps = Vec::new();
        if group.join {
            let init = json!({
                "master_address": group.master_address,
                "master_port": group.master_port,
                "rank_offset": rank,
                "world_size": group.world_size,
                "group_name": group.name,
                "backend": group.backend,
            });
            steps.push(ControlStep::new("/init_weights_update_group", init));
        }
        let update = json!({
            "names": tensor_column(group, |tensor| json!(tensor.name)),
            "dtypes": tensor_column(group, |tensor| json!(tensor.dtype)),
            "shapes": tensor_column(group, |tensor| json!(tensor.shape)),
            "group_name": group.name,
            "abort_all_requests": false,
            "weight_version": version.to_string(),
            "flush_cache": true,
        });
        // Some of the tensors may have arrived before the refusal.
        steps.push(ControlStep::after_change("/update_weights_from_distributed", update));
        steps
    }
}

#[derive(Deserialize)]
struct MetaInfo {
    output_token_logprobs: Option<Vec<(Option<f32>, i32, IgnoredAny)>>,
    weight_version: Option<Value>,
    weight_versions: Option<Vec<ReportedSpan>>,
}

impl ResponseFields for SglangApi {
    fn top(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        // In a chat every choice has a `meta_info` of its own, which says the same and more.
        if plan.kind == CallKind::Chat {
            return Ok(ChoiceDelta::default());
        }
        let mut delta = ChoiceDelta::default();
        if let Some(meta) = fields.get::<MetaInfo>("metadata")? {
            meta.versions(&mut delta);
        }
        Ok(delta)
    }

    fn choice(&self, plan: &StripPlan, fields: &mut JsonFields<'_>) -> Result<ChoiceDelta, String> {
        let mut delta =
            ChoiceDelta { prompt: fields.get("prompt_token_ids")?, ..ChoiceDelta::default() };
        match plan.kind {
            CallKind::Chat => {
                if let Some(mut meta) = fields.get::<MetaInfo>("meta_info")? {
                    if let Some(entries) = meta.output_token_logprobs.take() {
                        delta.logprobs = Some(entries.iter().map(|entry| entry.0).collect());
                        delta.tokens = Some(entries.iter().map(|entry| entry.1).collect());
                    }
                    meta.versions(&mut delta);
                }
            }
            CallKind::Completion => {
                delta.tokens = fields.get("token_ids")?;
                delta.logprobs = logprobs(plan.kind, fields)?;
            }
        }
        if !plan.keeps_token_ids {
            fields.remove("token_ids");
        }
        if !plan.keeps_meta_info {
            fields.remove("meta_info");
        }
        if !(plan.keeps_prompt_token_ids || plan.keeps_token_ids) {
            fields.remove("prompt_token_ids");
        }
        if !plan.keeps_logprobs {
            fields.blank("logprobs");
        }
        Ok(delta)
    }
}

impl MetaInfo {
    fn versions(self, delta: &mut ChoiceDelta) {
        match self.weight_versions {
            Some(spans) => delta.spans = Some(spans),
            None => delta.last_version = self.weight_version.as_ref().map(ReportedVersion::read),
        }
    }
}
