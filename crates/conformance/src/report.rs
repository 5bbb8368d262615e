//! What was checked and how it went.

use std::fmt;

macro_rules! checks {
    ($($(#[$doc:meta])* $check:ident = $name:literal, $title:literal;)+) => {
        /// One thing that a worker has to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Check { $(#[doc = $title] $check,)+ }

        impl Check {
            /// All of them, in the order in which they are reported.
            pub const ALL: &'static [Self] = &[$(Self::$check,)+];

            /// Returns a short name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$check => $name,)+ }
            }

            /// Says what is checked.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$check => $title,)+ }
            }
        }
    };
}

checks! {
    Hello = "hello", "says hello first, with its token and the versions it speaks";
    Secret = "secret", "gives up when its secret is refused";
    Version = "version", "gives up when there is no common version";
    Ready = "ready", "reports every runner ready, and none while it is busy";
    Began = "began", "reports an attempt begun before its results";
    Runs = "runs", "reports every run of an attempt exactly once";
    Ended = "ended", "says nothing about an attempt after its end";
    Success = "success", "delivers the experiences of a good run";
    Define = "define", "remembers a workflow that was defined once";
    Failure = "failure", "reports a run that raised as failed, in words";
    Eval = "eval", "delivers no experiences in eval";
    Heartbeat = "heartbeat", "sends heartbeats in time, with its runners and their attempts";
    Cancel = "cancel", "acknowledges a cancel in time";
    AfterCancel = "after_cancel", "reports no results after it acknowledged a cancel";
    LateCancel = "late_cancel", "ignores a cancel for an attempt that is over";
    Parallel = "parallel", "executes attempts on two runners at the same time";
    Restart = "restart", "ends a life of a busy runner and begins a new one";
    Unknown = "unknown", "ignores fields and messages that it does not know";
    Goodbye = "goodbye", "says goodbye when it is to shut down, and ends well";
    EngineGone = "engine_gone", "ends when the engine is gone";
}

/// How a check went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// As it should.
    Passed,
    /// Not as it should.
    Failed(String),
    /// It could not be tried.
    Skipped(String),
}

/// How all checks went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformanceReport {
    /// Every check, in order.
    pub verdicts: Vec<(Check, CheckResult)>,
}

impl ConformanceReport {
    /// Tells whether nothing failed.
    pub fn ok(&self) -> bool {
        self.failed().is_empty()
    }

    /// Returns what failed.
    pub fn failed(&self) -> Vec<Check> {
        let failed = self.verdicts.iter().filter(|(_, v)| matches!(v, CheckResult::Failed(_)));
        failed.map(|(check, _)| *check).collect()
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for (check, verdict) in &self.verdicts {
            let (name, title) = (check.name(), check.title());
            match verdict {
                CheckResult::Passed => {
                    passed += 1;
                    writeln!(f, "passed   {name:12} {title}")?;
                }
                CheckResult::Failed(why) => {
                    failed += 1;
                    writeln!(f, "FAILED   {name:12} {title}\n         {:12} {why}", "")?;
                }
                CheckResult::Skipped(why) => {
                    skipped += 1;
                    writeln!(f, "skipped  {name:12} {title} ({why})")?;
                }
            }
        }
        write!(f, "\n{passed} passed, {failed} failed")?;
        if skipped > 0 {
            write!(f, ", {skipped} skipped")?;
        }
        Ok(())
    }
}
