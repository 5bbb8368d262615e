//! `explorer.rollout_model` and `explorer.auxiliary_models`: which inference servers to talk to.

use rollway_base::ServerKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One model and the servers that serve it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Name in metrics, and under which workflows find an auxiliary model. Absent: its number.
    pub name: Option<String>,
    /// What the server calls the model: usually the path or the hub name it was started with.
    /// Absent: the only model that the server has.
    pub model_path: Option<String>,
    /// Kind of server.
    pub engine_type: EngineType,
    /// Addresses of the servers, such as `http://localhost:8000/v1`. One address needs no list.
    /// None: the models are handed over in code.
    #[schemars(extend("x-one-or-many" = true))]
    pub base_url: Vec<String>,
    /// Environment variable that holds the key for the servers. Absent: they need none.
    pub api_key_env: Option<String>,
    /// How many engines there are, where `base_url` does not say so.
    #[schemars(range(min = 1))]
    pub engine_num: u32,
    /// GPUs over which a server spreads the model. Rollway does not start servers: the number only
    /// tells the ranks of a weight synchronization with `nccl`.
    #[schemars(range(min = 1))]
    pub tensor_parallel_size: u32,
    /// Sampling temperature. Absent: as the server has it.
    #[schemars(range(min = 0.0))]
    pub temperature: Option<f64>,
    /// Nucleus sampling. Absent: as the server has it.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1.0))]
    pub top_p: Option<f64>,
    /// The most likely tokens that are sampled from; -1 for all. Absent: as the server has it.
    #[schemars(range(min = -1))]
    pub top_k: Option<i32>,
    /// Seed of the sampling. Absent: as the server has it.
    pub seed: Option<u64>,
    /// The longest answer, in tokens. Absent: as the server has it.
    #[schemars(range(min = 1))]
    pub max_response_tokens: Option<u32>,
}

impl ModelConfig {
    /// Returns how many engines serve the model.
    pub fn engines(&self) -> u32 {
        match u32::try_from(self.base_url.len()) {
            Ok(0) | Err(_) => self.engine_num,
            Ok(servers) => servers,
        }
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            name: None,
            model_path: None,
            engine_type: EngineType::default(),
            base_url: Vec::new(),
            api_key_env: None,
            engine_num: 1,
            tensor_parallel_size: 1,
            temperature: None,
            top_p: None,
            top_k: None,
            seed: None,
            max_response_tokens: None,
        }
    }
}

/// Kind of inference server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineType {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// `llama-server` of llama.cpp.
    LlamaCpp,
    /// Anything else that speaks the OpenAI API. It tells no token ids: nothing to train on.
    Openai,
    /// The embedded model: nothing to start, nothing to download.
    Tiny,
    /// Answers at once and always the same, for tests and measurements.
    Echo,
}

impl EngineType {
    /// Returns the kind of the inference server; none for embedded models.
    pub const fn server_kind(self) -> Option<ServerKind> {
        match self {
            Self::Vllm => Some(ServerKind::Vllm),
            Self::Sglang => Some(ServerKind::Sglang),
            Self::LlamaCpp => Some(ServerKind::LlamaCpp),
            Self::Openai => Some(ServerKind::Openai),
            Self::Tiny | Self::Echo => None,
        }
    }

    /// Tells whether the model lives in a server outside of Rollway.
    pub const fn is_server(self) -> bool {
        self.server_kind().is_some()
    }
}
