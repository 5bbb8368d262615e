//! `explorer.supervision`: start, liveness and replacement of runners.

use rollway_core::Supervision as Core;

use super::seconds::ConfigSeconds;

section! {
    /// Start, liveness and replacement of runners.
    pub struct SupervisionConfig {
        /// Maximum time from the start of a runner until it is ready.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub start_timeout: ConfigSeconds = Core::default().start_timeout.into(),
        /// Maximum time until a runner confirms that an attempt has begun.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub begin_timeout: ConfigSeconds = Core::default().begin_timeout.into(),
        /// Time without a heartbeat after which a runner counts as lost. `null`: no limit.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub heartbeat_timeout: Option<ConfigSeconds> =
            Core::default().heartbeat_timeout.map(Into::into),
        /// Maximum time for a runner to acknowledge a cancel before it is replaced.
        pub cancel_grace: ConfigSeconds = Core::default().cancel_grace.into(),
        /// Delay before a runner that finished no attempt is started again; doubles each time.
        pub restart_backoff: ConfigSeconds = Core::default().restart_backoff.into(),
        /// Maximum delay before a runner is started again.
        pub max_restart_backoff: ConfigSeconds = Core::default().max_restart_backoff.into(),
        /// Consecutive failed starts after which a runner counts as broken.
        #[schemars(range(min = 1))]
        pub max_start_failures: u32 = Core::default().max_start_failures,
        /// Delay before a broken runner is started again.
        pub broken_retry_delay: ConfigSeconds = Core::default().broken_retry_delay.into(),
        /// Maximum time that a retry waits for a runner other than the one it failed on.
        pub other_runner_wait: ConfigSeconds = Core::default().other_runner_wait.into(),
    }
}

impl SupervisionConfig {
    pub(super) fn to_core(&self) -> Core {
        Core {
            start_timeout: self.start_timeout.into(),
            begin_timeout: self.begin_timeout.into(),
            heartbeat_timeout: self.heartbeat_timeout.map(Into::into),
            cancel_grace: self.cancel_grace.into(),
            restart_backoff: self.restart_backoff.into(),
            max_restart_backoff: self.max_restart_backoff.into(),
            max_start_failures: self.max_start_failures,
            broken_retry_delay: self.broken_retry_delay.into(),
            other_runner_wait: self.other_runner_wait.into(),
        }
    }
}
