//! Options of a mock server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use rollway_base::ServerKind;
use rollway_base::listener::{ListenerKind, ListenerLimits};

use super::script::{CompletionLengths, ScriptedTurn};
use super::text::Tokenizer;

#[derive(Clone, Debug)]
pub struct MockServerOptions {
    /// Kind of the server; llama.cpp has no mock.
    pub kind: ServerKind,
    /// Port 0 takes any free port.
    pub address: SocketAddr,
    /// Determines all generated tokens.
    pub seed: u64,
    pub model: String,
    /// `None`: no key is required.
    pub api_key: Option<String>,
    /// Delay of the first token.
    pub first_token: Duration,
    /// Rate of each choice after the first token; 0: no delay.
    pub tokens_per_second: f64,
    pub lengths: CompletionLengths,
    /// Size of the vocabulary, without bytes and special tokens.
    pub words: u32,
    /// Maximum tokens of prompt and completion together.
    pub max_model_len: u32,
    /// Maximum number of concurrent requests; further ones wait.
    pub max_running: usize,
    pub version: u64,
    /// Name of the version until a client sets one. `None`: `default`, as the real servers.
    pub version_name: Option<String>,
    /// True if SGLang's `meta_info` has the version of each span of tokens (`weight_versions`), not
    /// only the last one (`weight_version`).
    pub version_spans: bool,
    /// Folder that a reload without a path reads.
    pub weights: Option<PathBuf>,
    pub update_time: Duration,
    /// Probability that a request fails with status 500.
    pub fail_rate: f64,
    /// Probability that the connection is closed in the middle of a response.
    pub cut_rate: f64,
    /// Probability of a tool call where the model may choose.
    pub tool_call_rate: f64,
    /// Turns of the model in conversations with tools: the first of a conversation, the second,
    /// and so on. Later turns, and conversations without tools, are generated as usual.
    pub turns: Vec<ScriptedTurn>,
    /// True if completions are tokenized differently when a prompt repeats them.
    pub drift: bool,
    /// True if the chat template removes the text of model turns before the last user message.
    pub strips_turns: bool,
    /// True if vLLM's endpoints for token ids are enabled (`--enable-scale-out`).
    pub scale_out: bool,
    /// True if vLLM fails to parse generated tokens to a chat response.
    pub derender_fails: bool,
    /// Endpoints that the server does not have, as in an older version: `/weight_info`.
    pub missing_endpoints: Vec<String>,
    /// True if fields that the API does not have are refused.
    pub strict: bool,
    /// Maximum number of recorded requests.
    pub max_records: usize,
    /// Limits of the connections.
    pub listener: ListenerLimits,
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
            turns: Vec::new(),
            drift: false,
            strips_turns: false,
            scale_out: true,
            derender_fails: false,
            missing_endpoints: Vec::new(),
            strict: false,
            max_records: 4096,
            listener: ListenerLimits::of(ListenerKind::MockServer),
        }
    }
}

impl MockServerOptions {
    pub fn new(kind: ServerKind) -> Self {
        Self { kind, ..Self::default() }
    }

    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(self.words)
    }
}
