//! `explorer.rollout_model` and `explorer.auxiliary_models`: models and their inference servers.

use std::borrow::Cow;

use rollway_base::ServerKind;
use rollway_base::suggest::instead;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

section! {
    /// A model and its inference servers.
    pub struct ModelConfig {
        /// Name of the model in metrics and for workflows. Absent: the number of an auxiliary
        /// model.
        pub name: Option<String>,
        /// Name of the model at the server: usually the path or hub name the server was started
        /// with. Absent: the only model of the server.
        pub model_path: Option<String>,
        pub engine_type: EngineType,
        /// Addresses of the servers, such as `http://localhost:8000/v1`. One address needs no list.
        /// Empty: the program that embeds Rollway passes the models.
        #[schemars(extend("x-one-or-many" = true))]
        pub base_url: Vec<String>,
        /// Environment variable that holds the API key of the servers. Absent: no key.
        pub api_key_env: Option<String>,
        /// Number of engines if `base_url` is empty.
        #[schemars(range(min = 1))]
        pub engine_num: u32 = 1,
        /// GPUs of one server. Rollway does not start servers: the number is used to compute the
        /// ranks of a weight sync with `nccl`.
        #[schemars(range(min = 1))]
        pub tensor_parallel_size: u32 = 1,
        /// Sampling temperature. Absent: the default of the server.
        #[schemars(range(min = 0.0))]
        pub temperature: Option<f64>,
        /// Nucleus sampling. Absent: the default of the server.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 1.0))]
        pub top_p: Option<f64>,
        /// Number of most likely tokens to sample from; -1 for all. Absent: the default of the
        /// server.
        #[schemars(range(min = -1))]
        pub top_k: Option<i32>,
        /// Seed of the sampling. Every call of a run gets its own, derived from this one, the
        /// task, the run and the number of the call, so that the runs of a group differ and can
        /// be repeated; so does a retried run. In mode `serve` it is sent as it is. Absent: no
        /// seeds are sent.
        pub seed: Option<u64>,
        /// Maximum length of a completion in tokens. Absent: the default of the server.
        #[schemars(range(min = 1))]
        pub max_response_tokens: Option<u32>,
    }
}

impl ModelConfig {
    /// Returns the number of engines that serve the model.
    pub fn engines(&self) -> u32 {
        match u32::try_from(self.base_url.len()) {
            Ok(0) | Err(_) => self.engine_num,
            Ok(servers) => servers,
        }
    }
}

/// Kind of inference server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineType {
    /// A process outside of Rollway.
    Server(ServerKind),
    /// The embedded model.
    Tiny,
    /// A fixed completion.
    Echo,
}

impl EngineType {
    /// Returns all kinds in the order of the reference, with names and descriptions.
    fn all() -> impl Iterator<Item = (Self, &'static str, &'static str)> + Clone {
        let servers =
            ServerKind::ALL.map(|kind| (Self::Server(kind), kind.name(), kind.description()));
        servers.into_iter().chain([
            (Self::Tiny, "tiny", "The embedded model: nothing to start, nothing to download."),
            (Self::Echo, "echo", "Returns a fixed completion at once, for tests and measurements."),
        ])
    }

    /// Returns the kind of the inference server. `None`: the model is embedded.
    pub const fn server_kind(self) -> Option<ServerKind> {
        match self {
            Self::Server(kind) => Some(kind),
            Self::Tiny | Self::Echo => None,
        }
    }

    /// Tells whether the model is served by a process outside of Rollway.
    pub const fn is_server(self) -> bool {
        self.server_kind().is_some()
    }
}

impl Default for EngineType {
    fn default() -> Self {
        Self::Server(ServerKind::Vllm)
    }
}

impl Serialize for EngineType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = Self::all().find_map(|(kind, name, _)| (kind == *self).then_some(name));
        name.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EngineType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let kind = Self::all().find_map(|(kind, name, _)| (name == text).then_some(kind));
        kind.ok_or_else(|| {
            let names = Self::all().map(|(_, name, _)| name);
            D::Error::custom(format!("unknown server kind `{text}`: {}", instead(&text, names)))
        })
    }
}

impl JsonSchema for EngineType {
    fn schema_name() -> Cow<'static, str> {
        "EngineType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let choices = Self::all().map(|(_, name, description)| {
            json!({ "description": description, "type": "string", "const": name })
        });
        json_schema!({
            "description": "Kind of inference server.",
            "oneOf": choices.collect::<Vec<_>>(),
        })
    }
}
