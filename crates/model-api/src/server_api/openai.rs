//! OpenAI-compatible servers without extensions. Some refuse unknown fields, so that the client's
//! request is sent unchanged, and responses have no tokens to train on.

use super::chunk_parser::{ChunkParser, ResponseFields, StripPlan, forward, outgoing};
use super::{ResponseParser, ServerApi, UpstreamBody, WeightControl};
use crate::model_call::ModelCall;

#[derive(Debug)]
pub(super) struct OpenaiApi;

impl ServerApi for OpenaiApi {
    fn upstream_body(&self, call: &ModelCall, model: &str, _: &str) -> UpstreamBody {
        outgoing(call, forward(call, model), call.stream)
    }

    fn response_parser(&self, call: &ModelCall, id: &str, model: &str) -> Box<dyn ResponseParser> {
        Box::new(ChunkParser::new(&Self, StripPlan::new(call, false), call, id, model))
    }

    fn health_path(&self) -> &'static str {
        "/v1/models"
    }

    fn refuses_unknown_models(&self) -> bool {
        true
    }

    fn weight_control(&self) -> Result<&'static dyn WeightControl, &'static str> {
        Err("an OpenAI-compatible server cannot update its weights")
    }
}

impl ResponseFields for OpenaiApi {}
