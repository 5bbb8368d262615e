//! `explorer.gateway`: model calls of runs and agents.

use super::seconds::ConfigSeconds;

section! {
    /// The model gateway, through which all model calls go.
    pub struct GatewayConfig {
        /// Sends a chat that continues a recorded turn with the tokens of that turn, so that a
        /// conversation is one experience even if the chat template tokenizes completions
        /// differently. vLLM needs `--enable-scale-out` for it; SGLang nothing; other servers
        /// get chats as they are.
        pub exact_histories: bool = true,
        /// Further names of the trained model in calls, for agents whose model name is fixed or
        /// changed on its way. A final `*` stands for any end: `claude-*`, `*`. Names of other
        /// models are not affected.
        pub model_aliases: Vec<String>,
        /// Maximum requests in flight at one server. Further ones wait.
        #[schemars(range(min = 1))]
        pub max_requests_per_server: u32 = 16_384,
        /// Maximum wait of a call for a server, if all are full, updated or not healthy.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub server_wait: ConfigSeconds = ConfigSeconds::new(60),
    }
}
