//! How a run can end other than well, and what the configuration says is to follow.

use std::time::Duration;

/// Declares a closed list of names with their spelling in logs, metrics and configuration, and an
/// array type with one number for each.
macro_rules! names {
    (
        $(#[$doc:meta])* $name:ident, $table:ident {
            $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// All of them, in their fixed order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name used in logs, metrics and configuration.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        #[doc = concat!("One count for every [`", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $table([u64; $name::ALL.len()]);

        impl $table {
            /// Returns the sum over all.
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }

            /// Iterates over those that are not zero.
            pub fn nonzero(&self) -> impl Iterator<Item = ($name, u64)> {
                $name::ALL.iter().map(|name| (*name, self[*name])).filter(|(_, count)| *count > 0)
            }

            /// Adds the counts of another table.
            pub fn add(&mut self, other: &Self) {
                for (mine, theirs) in self.0.iter_mut().zip(other.0) {
                    *mine += theirs;
                }
            }
        }

        impl std::ops::Index<$name> for $table {
            type Output = u64;

            fn index(&self, name: $name) -> &u64 {
                &self.0[name as usize]
            }
        }

        impl std::ops::IndexMut<$name> for $table {
            fn index_mut(&mut self, name: $name) -> &mut u64 {
                &mut self.0[name as usize]
            }
        }
    };
}
pub(crate) use names;

names!(
    /// Why a run failed.
    FailureKind, ByFailureKind {
        /// The user's code raised.
        Workflow = "workflow",
        /// The attempt lasted longer than it may.
        Timeout = "timeout",
        /// The runner died, fell silent or ended the attempt without a word about the run.
        RunnerLost = "runner_lost",
        /// No inference server answered.
        ModelUnavailable = "model_unavailable",
        /// The workflow returned what cannot be an experience, or too much of it.
        InvalidOutput = "invalid_output",
    }
);

names!(
    /// Why a run was cancelled.
    CancelReason, ByCancelReason {
        /// Its batch was aborted.
        Aborted = "aborted",
        /// Enough other tasks of its batch had finished.
        OverRollout = "over_rollout",
        /// Whoever waited for the batch ran out of time and asked for the rest to be cleared.
        TimedOut = "timed_out",
        /// Another run failed in a way that fails the batch.
        BatchFailed = "batch_failed",
        /// Its batch is the first one and holds half of the budget for payloads, or more, while the
        /// budget is used up: waiting could not help.
        NoRoom = "no_room",
        /// The scheduler was stopped.
        Stopped = "stopped",
        /// Somebody asked for just this run to be cancelled.
        Requested = "requested",
    }
);

/// Rules for failed runs, one for every [`FailureKind`]. Plain data: the configuration declares it
/// and the scheduler reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// Rules in the order of [`FailureKind::ALL`]. A task that is suspected of killing runners is
    /// bounded by [`poison_limit`](Self::poison_limit) instead of the rule for lost runners.
    pub rules: [FailureRule; FailureKind::ALL.len()],
    /// Number of lost runners after which a task that is suspected each time fails.
    pub poison_limit: u32,
    /// Treatment of the good runs of a task some of whose runs failed.
    pub groups: GroupPolicy,
}

impl FailurePolicy {
    /// Returns the rule for a kind.
    pub const fn rule(&self, kind: FailureKind) -> &FailureRule {
        &self.rules[kind as usize]
    }

    /// Returns the rule for a kind, to be changed.
    pub const fn rule_mut(&mut self, kind: FailureKind) -> &mut FailureRule {
        &mut self.rules[kind as usize]
    }

    /// Returns the policy with `retries` for failures of the task itself, and a larger number for
    /// failures of the machinery.
    pub fn with_retries(retries: u32) -> Self {
        let own = FailureRule { retries, backoff: Duration::ZERO, then: OnExhausted::FailRun };
        let machinery = FailureRule { retries: 10, ..own };
        let mut policy = Self {
            rules: [own; FailureKind::ALL.len()],
            poison_limit: 3,
            groups: GroupPolicy::Partial,
        };
        *policy.rule_mut(FailureKind::RunnerLost) = machinery;
        *policy.rule_mut(FailureKind::ModelUnavailable) =
            FailureRule { backoff: Duration::from_secs(1), ..machinery };
        policy
    }
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self::with_retries(2)
    }
}

/// What follows a failure of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// A run that has failed in this way is tried again if it has had at most this many failures
    /// of the same sort: of its own (workflow, timeout, invalid output), or of the machinery around
    /// it (lost runners, absent models).
    pub retries: u32,
    /// How long to wait before the first retry; doubles with each, up to a minute.
    pub backoff: Duration,
    /// What happens when the retries are used up.
    pub then: OnExhausted,
}

impl FailureRule {
    /// Returns how long to wait before the retry that follows the `failures`-th failure.
    pub fn wait(&self, failures: u32) -> Duration {
        const MAX_BACKOFF: Duration = Duration::from_secs(60);
        let doublings = failures.saturating_sub(1).min(16);
        self.backoff.saturating_mul(1 << doublings).min(MAX_BACKOFF.max(self.backoff))
    }
}

/// What happens when the retries of a run are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExhausted {
    /// The run has failed; its task and batch go on without it.
    FailRun,
    /// The batch has failed: the rest is cancelled and whoever waits is told.
    FailBatch,
}

/// What becomes of the good runs of a task some of whose runs failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPolicy {
    /// They are delivered.
    Partial,
    /// They are dropped, and counted as dropped: a group is trained whole or not at all.
    Whole,
}
