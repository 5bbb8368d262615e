//! Any other server that speaks OpenAI's API. Some refuse fields that they do not know, so that it
//! is sent what the client sent and nothing more, and its answers have no tokens to train on.

use super::chunk_parser::{ChunkParser, ResponseFields, StripPlan, forward, outgoing};
use super::{ResponseParser, ServerApi, UpstreamBody, WeightControl};
use crate::model_call::ModelCall;

/// The dialect of servers of which nothing else is known.
#[derive(Debug)]
pub(super) struct OpenaiApi;

impl ServerApi for OpenaiApi {
    fn upstream_body(&self, call: &ModelCall, model: &str, _: &str) -> UpstreamBody {
        outgoing(call, forward(call, model), call.stream)
    }

    fn response_parser(&self, call: &ModelCall, id: &str, model: &str) -> Box<dyn ResponseParser> {
        Box::new(ChunkParser::new(&Self, StripPlan::keeping(call), call, id, model))
    }

    fn health_path(&self) -> &'static str {
        "/v1/models"
    }

    fn weight_control(&self) -> Result<&'static dyn WeightControl, &'static str> {
        Err("a plain OpenAI-compatible server cannot be given other weights: train with vllm or \
             sglang")
    }
}

impl ResponseFields for OpenaiApi {}
