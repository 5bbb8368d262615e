//! `explorer.supervision`: how runners are looked after.

use rollway_core::Supervision as Core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::Seconds;

/// How runners are looked after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Supervision {
    /// How long a runner may take to say that it is ready.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub start_timeout: Seconds,
    /// How long a runner may take to say that it has begun an attempt.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub begin_timeout: Seconds,
    /// How long a runner may be silent before it counts as lost. `null`: it is not watched.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub silence_timeout: Option<Seconds>,
    /// How long a runner has to acknowledge a cancel before it is replaced.
    pub cancel_grace: Seconds,
    /// The pause before a runner is started again after a life that finished no attempt; doubles
    /// with each such life.
    pub restart_backoff: Seconds,
    /// The longest pause before a runner is started again.
    pub restart_backoff_max: Seconds,
    /// After how many failed starts in a row a runner is shown as broken.
    #[schemars(range(min = 1))]
    pub start_failures_max: u32,
    /// How long a broken runner rests before it is tried again.
    pub broken_rest: Seconds,
    /// How long a retry waits for a runner other than the one it failed on, while there is one.
    pub elsewhere_wait: Seconds,
}

impl Supervision {
    pub(super) fn to_core(&self) -> Core {
        let Self {
            start_timeout,
            begin_timeout,
            silence_timeout,
            cancel_grace,
            restart_backoff,
            restart_backoff_max,
            start_failures_max,
            broken_rest,
            elsewhere_wait,
        } = *self;
        Core {
            start_timeout: start_timeout.into(),
            begin_timeout: begin_timeout.into(),
            silence_timeout: silence_timeout.map(Into::into),
            cancel_grace: cancel_grace.into(),
            restart_backoff: restart_backoff.into(),
            restart_backoff_max: restart_backoff_max.into(),
            start_failures_max,
            broken_rest: broken_rest.into(),
            elsewhere_wait: elsewhere_wait.into(),
        }
    }
}

impl Default for Supervision {
    fn default() -> Self {
        let Core {
            start_timeout,
            begin_timeout,
            silence_timeout,
            cancel_grace,
            restart_backoff,
            restart_backoff_max,
            start_failures_max,
            broken_rest,
            elsewhere_wait,
        } = Core::default();
        Self {
            start_timeout: start_timeout.into(),
            begin_timeout: begin_timeout.into(),
            silence_timeout: silence_timeout.map(Into::into),
            cancel_grace: cancel_grace.into(),
            restart_backoff: restart_backoff.into(),
            restart_backoff_max: restart_backoff_max.into(),
            start_failures_max,
            broken_rest: broken_rest.into(),
            elsewhere_wait: elsewhere_wait.into(),
        }
    }
}
