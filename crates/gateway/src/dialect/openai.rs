//! Any other server that speaks OpenAI's API. Some refuse fields that they do not know, so that it
//! is sent what the client sent and nothing more, and its answers have no tokens to train on.

use super::chunks::{Chunks, Plan, Words, forward, outgoing};
use super::{Dialect, Outgoing, Reader};
use crate::call::Call;

/// The dialect of servers of which nothing else is known.
#[derive(Debug)]
pub struct OpenAi;

impl Dialect for OpenAi {
    fn outgoing(&self, call: &Call, model: &str, _: &str) -> Outgoing {
        outgoing(call, forward(call, model), call.stream)
    }

    fn reader(&self, call: &Call, id: &str, model: &str) -> Box<dyn Reader> {
        Box::new(Chunks::new(&Self, Plan::keeping(call), call, id, model))
    }
}

impl Words for OpenAi {}
