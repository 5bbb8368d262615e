//! `explorer.supervision`: how runners are looked after.

use rollway_core::Supervision as Core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::ConfigSeconds;

/// How runners are looked after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisionConfig {
    /// How long a runner may take to say that it is ready.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub start_timeout: ConfigSeconds,
    /// How long a runner may take to say that it has begun an attempt.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub begin_timeout: ConfigSeconds,
    /// Time without a heartbeat after which a runner counts as lost. `null`: no limit.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub heartbeat_timeout: Option<ConfigSeconds>,
    /// How long a runner has to acknowledge a cancel before it is replaced.
    pub cancel_grace: ConfigSeconds,
    /// The pause before a runner is started again after a life that finished no attempt; doubles
    /// with each such life.
    pub restart_backoff: ConfigSeconds,
    /// Maximum delay before a runner is started again.
    pub max_restart_backoff: ConfigSeconds,
    /// After how many failed starts in a row a runner is shown as broken.
    #[schemars(range(min = 1))]
    pub max_start_failures: u32,
    /// Delay before a broken runner is started again.
    pub broken_retry_delay: ConfigSeconds,
    /// How long a retry waits for a runner other than the one it failed on, while there is one.
    pub other_runner_wait: ConfigSeconds,
}

impl SupervisionConfig {
    pub(super) fn to_core(&self) -> Core {
        let Self {
            start_timeout,
            begin_timeout,
            heartbeat_timeout,
            cancel_grace,
            restart_backoff,
            max_restart_backoff,
            max_start_failures,
            broken_retry_delay,
            other_runner_wait,
        } = *self;
        Core {
            start_timeout: start_timeout.into(),
            begin_timeout: begin_timeout.into(),
            silence_timeout: heartbeat_timeout.map(Into::into),
            cancel_grace: cancel_grace.into(),
            restart_backoff: restart_backoff.into(),
            restart_backoff_max: max_restart_backoff.into(),
            start_failures_max: max_start_failures,
            broken_rest: broken_retry_delay.into(),
            elsewhere_wait: other_runner_wait.into(),
        }
    }
}

impl Default for SupervisionConfig {
    fn default() -> Self {
        let core = Core::default();
        Self {
            start_timeout: core.start_timeout.into(),
            begin_timeout: core.begin_timeout.into(),
            heartbeat_timeout: core.silence_timeout.map(Into::into),
            cancel_grace: core.cancel_grace.into(),
            restart_backoff: core.restart_backoff.into(),
            max_restart_backoff: core.restart_backoff_max.into(),
            max_start_failures: core.start_failures_max,
            broken_retry_delay: core.broken_rest.into(),
            other_runner_wait: core.elsewhere_wait.into(),
        }
    }
}
