//! Reasons why runs fail or are cancelled, and the policy that follows a failure.

use std::time::Duration;

/// Declares an enum with the spelling of its variants in logs, metrics and configuration, and
/// optionally a table type with one count per variant.
macro_rules! names {
    (
        $(#[$doc:meta])* $name:ident, $table:ident { $($body:tt)+ }
    ) => {
        names!($(#[$doc])* $name { $($body)+ });

        #[doc = concat!("One count for every [`", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $table([u64; $name::ALL.len()]);

        impl $table {
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }

            /// Iterates over the counts that are not zero.
            pub fn nonzero(&self) -> impl Iterator<Item = ($name, u64)> {
                $name::ALL.iter().map(|name| (*name, self[*name])).filter(|(_, count)| *count > 0)
            }

            /// Iterates over the names and counts that are not zero.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                self.nonzero().map(|(name, count)| (name.name(), count))
            }

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
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
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
    };
}
pub(crate) use names;

/// Declares the failure kinds with the [`FailureRule`] that is their default and a remedy.
macro_rules! failure_kinds {
    ($(
        $(#[$doc:meta])+
        $kind:ident = $name:literal {
            class: $class:ident, backoff: $seconds:literal, remedy: $remedy:literal
        }
    )+) => {
        names!(
            /// Reason why a run failed.
            FailureKind, ByFailureKind { $($(#[$doc])+ $kind = $name,)+ }
        );

        impl FailureKind {
            pub const fn class(self) -> FailureClass {
                match self { $(Self::$kind => FailureClass::$class,)+ }
            }

            /// Returns the default delay before the first retry.
            const fn backoff(self) -> Duration {
                Duration::from_secs(match self { $(Self::$kind => $seconds,)+ })
            }

            /// Returns the remedy that messages about failures of this kind suggest.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$kind => $remedy,)+ }
            }
        }
    };
}

failure_kinds! {
    /// The user's code raised an error.
    Workflow = "workflow" {
        class: Task, backoff: 0,
        remedy: "`rollway debug` runs one task and shows the traceback"
    }
    /// The attempt exceeded its timeout.
    Timeout = "timeout" {
        class: Task, backoff: 0,
        remedy: "find the slow part with `rollway debug`, or raise `explorer.max_timeout`"
    }
    /// The runner was lost, or ended the attempt without a report about the run.
    RunnerLost = "runner_lost" {
        class: Infrastructure, backoff: 0,
        remedy: "the process of the run ended: it called `exit`, crashed in native code, or was \
                 killed (signal 9: memory); its last lines are in the log"
    }
    /// No inference server responded.
    ModelUnavailable = "model_unavailable" {
        class: Infrastructure, backoff: 1,
        remedy: "check that the inference servers respond"
    }
    /// The workflow returned an invalid or too large output.
    InvalidOutput = "invalid_output" {
        class: Task, backoff: 0,
        remedy: "`rollway debug` runs one task and shows its output"
    }
    /// A sandbox could not be started, or failed while the run used it.
    Sandbox = "sandbox" {
        class: Infrastructure, backoff: 1,
        remedy: "check that sandboxes can be started, and `explorer.sandbox`"
    }
}

names!(
    /// Reason why a run was cancelled.
    CancelReason, ByCancelReason {
        Aborted = "aborted",
        /// Enough other tasks of its batch had finished.
        OverRollout = "over_rollout",
        /// The wait for the batch timed out, and its remaining runs were to be cleared.
        TimedOut = "timed_out",
        /// Another run failed in a way that fails the batch.
        BatchFailed = "batch_failed",
        /// Its batch is served first and holds at least half of the exhausted payload budget, so
        /// that waiting would not free any.
        NoRoom = "no_room",
        Stopped = "stopped",
        /// A request cancelled this run only.
        Requested = "requested",
    }
);

/// Failures that are bounded by one count of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// Failures of the task itself.
    Task,
    Infrastructure,
}

impl FailureKind {
    /// Returns the default rule; `retries` are those of the task itself.
    const fn default_rule(self, retries: u32) -> FailureRule {
        let retries = match self.class() {
            FailureClass::Task => retries,
            FailureClass::Infrastructure => 10,
        };
        FailureRule { retries, backoff: self.backoff(), then: OnExhausted::FailRun }
    }
}

/// Rules for failed runs, one for every [`FailureKind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// Rules in the order of [`FailureKind::ALL`]. A task that is suspected of killing runners is
    /// bounded by [`poison_limit`](Self::poison_limit) instead of the rule for lost runners.
    pub rules: [FailureRule; FailureKind::ALL.len()],
    /// Number of lost runners after which a task that is suspected each time fails.
    pub poison_limit: u32,
    /// Treatment of the successful runs of a task with failed runs.
    pub groups: GroupPolicy,
}

impl FailurePolicy {
    pub const fn rule(&self, kind: FailureKind) -> &FailureRule {
        &self.rules[kind as usize]
    }

    pub const fn rule_mut(&mut self, kind: FailureKind) -> &mut FailureRule {
        &mut self.rules[kind as usize]
    }

    /// Returns the policy with `retries` for failures of the task itself, and more for failures of
    /// the infrastructure.
    pub fn with_retries(retries: u32) -> Self {
        Self {
            rules: std::array::from_fn(|kind| FailureKind::ALL[kind].default_rule(retries)),
            poison_limit: 3,
            groups: GroupPolicy::Partial,
        }
    }
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self::with_retries(2)
    }
}

/// Reaction to a failure of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// Maximum failures of the same [class](FailureClass) after which the run is retried.
    pub retries: u32,
    /// Delay before the first retry; doubles with each retry, up to a minute.
    pub backoff: Duration,
    pub then: OnExhausted,
}

impl FailureRule {
    /// Returns the delay before the retry that follows the `failures`-th failure.
    pub fn wait(&self, failures: u32) -> Duration {
        const MAX_BACKOFF: Duration = Duration::from_secs(60);
        let doublings = failures.saturating_sub(1).min(16);
        self.backoff.saturating_mul(1 << doublings).min(MAX_BACKOFF.max(self.backoff))
    }
}

/// Reaction to a run without retries left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExhausted {
    /// The run has failed; its task and batch continue.
    FailRun,
    /// The batch has failed: its other runs are cancelled and its waiters are refused.
    FailBatch,
}

/// Treatment of the successful runs of a task with failed runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPolicy {
    /// They are delivered.
    Partial,
    /// They are dropped, and counted as dropped.
    Whole,
}
