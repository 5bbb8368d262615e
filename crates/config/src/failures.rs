//! `explorer.failures`: what follows when runs fail, declared for each kind of failure.

use rollway_core::{
    FailureKind, FailurePolicy, FailureRule as CoreRule, GroupPolicy as CoreGroups,
    OnExhausted as CoreThen,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::seconds::ConfigSeconds;

/// What follows when runs fail, for each kind of failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FailuresConfig {
    /// The user's code raised. Usually `explorer.max_retry_times` retries at once.
    pub workflow: FailureRuleConfig,
    /// The attempt lasted longer than it may. Usually `explorer.max_retry_times` retries at once.
    pub timeout: FailureRuleConfig,
    /// The runner died or fell silent, and it was not the task that killed it. Usually 10 retries
    /// at once.
    pub runner_lost: FailureRuleConfig,
    /// No inference server answered. Usually 10 retries, the first after a second.
    pub model_unavailable: FailureRuleConfig,
    /// The workflow returned what cannot be an experience, or too much of it. Usually
    /// `explorer.max_retry_times` retries at once.
    pub invalid_output: FailureRuleConfig,
    /// After how many lost runners a task that is suspected each time is failed.
    #[schemars(range(min = 1))]
    pub poison_limit: u32,
    /// What becomes of the good runs of a task some of whose runs failed.
    pub group_policy: Groups,
}

impl FailuresConfig {
    /// Returns the policy of the core, in which `retries` stands where nothing else is said.
    pub(super) fn to_core(&self, retries: u32) -> FailurePolicy {
        let Self {
            workflow,
            timeout,
            runner_lost,
            model_unavailable,
            invalid_output,
            poison_limit,
            group_policy,
        } = self;
        let mut policy = FailurePolicy::with_retries(retries);
        for (kind, declared) in [
            (FailureKind::Workflow, workflow),
            (FailureKind::Timeout, timeout),
            (FailureKind::RunnerLost, runner_lost),
            (FailureKind::ModelUnavailable, model_unavailable),
            (FailureKind::InvalidOutput, invalid_output),
        ] {
            let rule = policy.rule_mut(kind);
            *rule = declared.over(*rule);
        }
        FailurePolicy { poison_limit: *poison_limit, groups: group_policy.to_core(), ..policy }
    }
}

impl Default for FailuresConfig {
    fn default() -> Self {
        let core = FailurePolicy::default();
        Self {
            workflow: FailureRuleConfig::default(),
            timeout: FailureRuleConfig::default(),
            runner_lost: FailureRuleConfig::default(),
            model_unavailable: FailureRuleConfig::default(),
            invalid_output: FailureRuleConfig::default(),
            poison_limit: core.poison_limit,
            group_policy: Groups::default(),
        }
    }
}

/// What follows a failure of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FailureRuleConfig {
    /// How many failures of this kind one run may have and still be tried again. Absent: as usual
    /// for the kind.
    pub retries: Option<u32>,
    /// How long to wait before the first retry; doubles with each, up to a minute. Absent: as
    /// usual for the kind.
    pub backoff: Option<ConfigSeconds>,
    /// What happens when the retries are used up.
    pub on_exhausted: Then,
}

impl FailureRuleConfig {
    fn over(&self, usual: CoreRule) -> CoreRule {
        let Self { retries, backoff, on_exhausted } = self;
        CoreRule {
            retries: retries.unwrap_or(usual.retries),
            backoff: backoff.map_or(usual.backoff, Into::into),
            then: on_exhausted.to_core(),
        }
    }
}

/// What happens when the retries of a run are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The run has failed; its task and batch go on without it.
    #[default]
    FailRun,
    /// The batch has failed: the rest is cancelled and whoever waits is told.
    FailBatch,
}

impl Then {
    const fn to_core(self) -> CoreThen {
        match self {
            Self::FailRun => CoreThen::FailRun,
            Self::FailBatch => CoreThen::FailBatch,
        }
    }
}

/// What becomes of the good runs of a task some of whose runs failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Groups {
    /// They are delivered.
    #[default]
    Partial,
    /// They are dropped, and counted as dropped: a group is trained whole or not at all.
    Whole,
}

impl Groups {
    const fn to_core(self) -> CoreGroups {
        match self {
            Self::Partial => CoreGroups::Partial,
            Self::Whole => CoreGroups::Whole,
        }
    }
}
