//! `explorer.failures`: reaction to failed runs, by kind of failure.

use rollway_core::{FailureKind, FailurePolicy, FailureRule, GroupPolicy, OnExhausted};

use super::seconds::ConfigSeconds;

section! {
    /// Reaction to failed runs, by kind of failure.
    pub struct FailuresConfig {
        /// The workflow raised an exception. Default: `explorer.max_retry_times` retries without
        /// backoff.
        pub workflow: FailureRuleConfig,
        /// The attempt exceeded its timeout. Default: `explorer.max_retry_times` retries without
        /// backoff.
        pub timeout: FailureRuleConfig,
        /// The runner died or sent no heartbeat, and the task is not suspected of killing it.
        /// Default: 10 retries without backoff.
        pub runner_lost: FailureRuleConfig,
        /// No inference server was available. Default: 10 retries, the first after a second.
        pub model_unavailable: FailureRuleConfig,
        /// The workflow returned invalid or too many experiences. Default:
        /// `explorer.max_retry_times` retries without backoff.
        pub invalid_output: FailureRuleConfig,
        /// A sandbox could not be started, or failed while the run used it. Default: 10 retries,
        /// the first after a second.
        pub sandbox: FailureRuleConfig,
        /// Lost runners after which a task that is suspected each time has failed.
        #[schemars(range(min = 1))]
        pub poison_limit: u32 = FailurePolicy::default().poison_limit,
        pub group_policy: Groups,
    }

    /// Reaction to failures of one kind.
    pub struct FailureRuleConfig {
        /// Maximum retries of a run after a failure of this kind. Failures of a class count
        /// together: `workflow`, `timeout` and `invalid_output` are failures of the task, the
        /// others of the infrastructure. Absent: the default of the kind.
        pub retries: Option<u32>,
        /// Delay before the first retry; doubles with each, up to a minute. Absent: the default of
        /// the kind.
        pub backoff: Option<ConfigSeconds>,
        pub on_exhausted: Then,
    }
}

choices! {
    /// Consequence of a failure after the last retry.
    pub enum Then {
        /// The run has failed; its task and batch continue without it.
        #[default]
        FailRun,
        /// The batch has failed: its other runs are cancelled, and its waits end with an error.
        FailBatch,
    }

    /// Delivery of the successful runs of a task that also has failed runs.
    pub enum Groups {
        /// They are delivered.
        #[default]
        Partial,
        /// They are dropped and counted: a group is trained on completely or not at all.
        Whole,
    }
}

impl FailuresConfig {
    const fn rule(&self, kind: FailureKind) -> &FailureRuleConfig {
        match kind {
            FailureKind::Workflow => &self.workflow,
            FailureKind::Timeout => &self.timeout,
            FailureKind::RunnerLost => &self.runner_lost,
            FailureKind::ModelUnavailable => &self.model_unavailable,
            FailureKind::InvalidOutput => &self.invalid_output,
            FailureKind::Sandbox => &self.sandbox,
        }
    }

    /// Returns the policy of the core; `retries` replaces `explorer.max_retry_times`.
    pub(super) fn to_core(&self, retries: u32) -> FailurePolicy {
        let mut policy = FailurePolicy::with_retries(retries);
        for &kind in FailureKind::ALL {
            let (declared, rule) = (self.rule(kind), policy.rule_mut(kind));
            *rule = FailureRule {
                retries: declared.retries.unwrap_or(rule.retries),
                backoff: declared.backoff.map_or(rule.backoff, Into::into),
                then: match declared.on_exhausted {
                    Then::FailRun => OnExhausted::FailRun,
                    Then::FailBatch => OnExhausted::FailBatch,
                },
            };
        }
        let groups = match self.group_policy {
            Groups::Partial => GroupPolicy::Partial,
            Groups::Whole => GroupPolicy::Whole,
        };
        FailurePolicy { poison_limit: self.poison_limit, groups, ..policy }
    }
}
