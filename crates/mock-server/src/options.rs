//! Options of a mock server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use rollway_base::ServerKind;

use super::script::CompletionLengths;
use super::text::Tokenizer;

/// Options of a mock server.
#[derive(Clone, Debug)]
pub struct MockServerOptions {
    /// Kind of the server; llama.cpp has no mock.
    pub kind: ServerKind,
    /// Where it listens; port 0 takes any that is free.
    pub address: SocketAddr,
    /// What everything it says depends on.
    pub seed: u64,
    /// The name of its model.
    pub model: String,
    /// What it wants to be shown as `Authorization: Bearer`.
    pub api_key: Option<String>,
    /// How long it takes until the first token.
    pub first_token: Duration,
    /// How many tokens a second each choice gets after that; 0 means at once.
    pub tokens_per_second: f64,
    /// How long its answers are.
    pub lengths: CompletionLengths,
    /// How many words it knows.
    pub words: u32,
    /// How many tokens a prompt and its answer may have together.
    pub max_model_len: u32,
    /// How many requests it works on at a time; others wait.
    pub max_running: usize,
    /// The version of the weights that it starts with.
    pub version: u64,
    /// What it calls that version until it is told another name; none for the name that a server of
    /// the kind gives it (`default`).
    pub version_name: Option<String>,
    /// Whether SGLang's `meta_info` also tells which version made which tokens
    /// (`weight_versions`), and not only the one at the end (`weight_version`).
    pub version_spans: bool,
    /// Where its weights are: read by a reload that names no other place.
    pub weights: Option<PathBuf>,
    /// How long an update of the weights takes.
    pub update_time: Duration,
    /// Which part of the requests fails with status 500, between 0 and 1.
    pub fail_rate: f64,
    /// Which part of the requests loses its connection in the middle of the answer.
    pub cut_rate: f64,
    /// Which part of the requests that offer tools, and leave the choice to the model, is answered
    /// with a tool call. Requests that demand one always are.
    pub tool_call_rate: f64,
    /// Whether what the model said is spelled in other tokens when a prompt repeats it.
    pub drift: bool,
    /// Whether fields that the API does not have are refused.
    pub strict: bool,
    /// How many requests are remembered with their tokens; of older ones only the number is known.
    pub max_records: usize,
}

impl Default for MockServerOptions {
    fn default() -> Self {
        Self {
            kind: ServerKind::Vllm,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            seed: 0,
            model: "simulated".to_owned(),
            api_key: None,
            first_token: Duration::ZERO,
            tokens_per_second: 0.0,
            lengths: CompletionLengths::Uniform(8, 64),
            words: 4096,
            max_model_len: 131_072,
            max_running: 16_384,
            version: 0,
            version_name: None,
            version_spans: false,
            weights: None,
            update_time: Duration::ZERO,
            fail_rate: 0.0,
            cut_rate: 0.0,
            tool_call_rate: 0.0,
            drift: false,
            strict: false,
            max_records: 4096,
        }
    }
}

impl MockServerOptions {
    /// Returns the default options of a kind of server.
    pub fn new(kind: ServerKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(self.words)
    }
}
