//! `explorer.gateway`: model calls of runs and agents.

use std::collections::BTreeMap;

use super::seconds::ConfigSeconds;

section! {
    /// The model gateway, through which all model calls go.
    pub struct GatewayConfig {
        /// Sends a chat that continues a recorded turn with the tokens of that turn, so that a
        /// conversation is one experience even if the chat template tokenizes completions
        /// differently. Servers that do not support it get chats as they are;
        /// `docs/recording.md` lists those that do.
        pub exact_histories: bool = true,
        /// Further names of the trained model in calls, for agents whose model name is fixed or
        /// changed on its way. A final `*` stands for any end: `claude-*`, `*`. Names of other
        /// models are not affected.
        pub model_aliases: Vec<String>,
        /// Maximum requests in flight at one server. Further ones wait.
        #[schemars(range(min = 1))]
        pub max_requests_per_server: u32 = 16_384,
        /// Sends fewer requests to a server that reports a queue or preemptions, and more again
        /// when it has room; the others wait in the gateway, for the first server with room. Off by
        /// default: it protects a server from preemptions, but costs throughput where requests
        /// only queue (11 to 16 % with 64 callers on a real vLLM that runs eight at once).
        pub adaptive_concurrency: bool = false,
        /// Lower bound of `adaptive_concurrency` for the requests in flight at one server.
        #[schemars(range(min = 1))]
        pub min_requests_per_server: u32 = 8,
        /// Interval at which servers are asked for their load: running and waiting requests, use
        /// of the KV cache, preemptions. 0: never.
        pub load_interval: ConfigSeconds = ConfigSeconds::new(1),
        /// Maximum wait of a call for a server, if all are full, updated or not healthy.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub server_wait: ConfigSeconds = ConfigSeconds::new(60),
        /// Further fields of requests that runs and agents may send to servers, beside those of
        /// OpenAI's APIs and the sampling parameters; `*`: all. Some fields of servers load code,
        /// files or tensors.
        pub pass_fields: Vec<String>,
        /// Lets servers load images and other media from addresses in the requests of runs and
        /// agents. Absent: only media in the request, as `data:` addresses.
        pub remote_media: bool,
        /// Calls in flight.
        #[schemars(range(min = 1))]
        pub calls: u32 = 32_768,
        /// Calls of one run in flight.
        #[schemars(range(min = 1))]
        pub calls_per_run: u32 = 256,
        /// Bytes of one request body.
        #[schemars(range(min = 1))]
        pub request_body_bytes: u64 = 32 << 20,
        /// Bytes of one response.
        #[schemars(range(min = 1))]
        pub response_body_bytes: u64 = 64 << 20,
        /// Objects, lists and their items in one request body. A prompt of token ids has one for
        /// each token.
        #[schemars(range(min = 1))]
        pub json_nodes: u64 = 2_000_000,
        /// Levels of objects and lists in one request body.
        #[schemars(range(min = 1, max = 127))]
        pub json_depth: u32 = 100,
        /// Bytes of memory of the requests of all calls in flight, as received and as parsed. One
        /// half is open to all runs, the other is divided equally. Calls wait for it for at most a
        /// minute.
        #[schemars(range(min = 1))]
        pub request_bytes: u64 = 2 << 30,
        /// Bytes of memory of the requests of one run in flight.
        #[schemars(range(min = 1))]
        pub request_bytes_per_run: u64 = 256 << 20,
        /// Bytes of memory of responses that are not yet sent and recorded, divided like
        /// `request_bytes`. Servers are read no further meanwhile.
        #[schemars(range(min = 1))]
        pub response_bytes: u64 = 1 << 30,
        /// Bytes of memory of the responses of one run.
        #[schemars(range(min = 1))]
        pub response_bytes_per_run: u64 = 256 << 20,
        /// Bytes of memory of the recordings of all open runs. Above half of it the recording of a
        /// run fails that has more than its share of the other half.
        #[schemars(range(min = 1))]
        pub recorded_bytes: u64 = 4 << 30,
        /// Bytes of memory of the recording of one run.
        #[schemars(range(min = 1))]
        pub recorded_bytes_per_run: u64 = 256 << 20,
        pub weights: ExperienceWeightsConfig,
    }
}

section! {
    /// Weights of the experiences of a run, as `info.weight`. Absent there if all have their
    /// defaults. The built-in trainer multiplies advantages by it.
    pub struct ExperienceWeightsConfig {
        /// Scales the weights of a run so that they sum to 1: a run with branches or sub-agents
        /// weighs as much as any other.
        pub per_run: bool,
        /// Weight of an experience that branches off from a turn that another one continues.
        #[schemars(range(min = 0))]
        pub branch: f64 = 1.0,
        /// Weight of an experience that continues a turn with other tokens.
        #[schemars(range(min = 0))]
        pub drift: f64 = 1.0,
        /// Weights by the agent that a client names by the header `X-Rollway-Agent`.
        pub agents: BTreeMap<String, f64>,
    }
}
