//! `explorer.server_restart`: restart of unusable servers.

use super::seconds::ConfigSeconds;

section! {
    /// Restart of servers of `rollout_model` that are unhealthy or have broken weights.
    pub struct ServerRestartConfig {
        /// Program and arguments. It gets the address of the server in `ROLLWAY_SERVER_URL`, and
        /// must return after the old process has ended. Empty: servers are not restarted.
        pub command: Vec<String>,
        /// Time for which a server must be unusable, and time until the command is repeated: longer
        /// than a server takes to start.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub after: ConfigSeconds = ConfigSeconds::new(600),
        /// Maximum duration of the command.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub timeout: ConfigSeconds = ConfigSeconds::new(300),
    }
}
