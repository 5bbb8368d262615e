//! Checks and their results.

use std::fmt;

macro_rules! checks {
    ($($(#[$doc:meta])* $check:ident = $name:literal, $title:literal;)+) => {
        /// A rule that a worker must follow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Check { $(#[doc = $title] $check,)+ }

        impl Check {
            /// All checks in the order of the report.
            pub const ALL: &'static [Self] = &[$(Self::$check,)+];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$check => $name,)+ }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Self::$check => $title,)+ }
            }
        }
    };
}

checks! {
    Hello = "hello", "sends `Hello` first, with its token and supported versions";
    Secret = "secret", "exits when its secret is refused";
    Version = "version", "exits when there is no common version";
    Ready = "ready", "reports every runner ready, and none while it is busy";
    Began = "began", "reports an attempt begun before its results";
    Runs = "runs", "reports every run of an attempt exactly once";
    Ended = "ended", "sends no report about an attempt after its end";
    Success = "success", "returns the experiences of a successful run";
    Define = "define", "keeps a workflow definition for later attempts";
    Failure = "failure", "reports a run that raised as failed, with a message";
    Eval = "eval", "returns no experiences in eval";
    Heartbeat = "heartbeat", "sends heartbeats in time, with its runners and their attempts";
    Cancel = "cancel", "acknowledges a cancel in time";
    AfterCancel = "after_cancel", "reports no results after it acknowledged a cancel";
    LateCancel = "late_cancel", "ignores a cancel of an ended attempt";
    Parallel = "parallel", "executes attempts on two runners at the same time";
    Restart = "restart", "stops a busy runner and starts its next incarnation";
    Unknown = "unknown", "ignores unknown fields and messages";
    Goodbye = "goodbye", "sends `Goodbye` on shutdown and exits with success";
    EngineGone = "engine_gone", "exits when the engine disconnects";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Passed,
    Failed(String),
    /// Not applicable, or not reached.
    Skipped(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformanceReport {
    pub results: Vec<(Check, CheckResult)>,
}

impl ConformanceReport {
    /// Returns whether no check failed.
    pub fn ok(&self) -> bool {
        self.failed().is_empty()
    }

    pub fn failed(&self) -> Vec<Check> {
        let failed = self.results.iter().filter(|(_, v)| matches!(v, CheckResult::Failed(_)));
        failed.map(|(check, _)| *check).collect()
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for (check, result) in &self.results {
            let (name, title) = (check.name(), check.title());
            let (count, line) = match result {
                CheckResult::Passed => (&mut passed, format!("passed   {name:12} {title}")),
                CheckResult::Failed(reason) => {
                    let indent = " ".repeat(22);
                    (&mut failed, format!("FAILED   {name:12} {title}\n{indent}{reason}"))
                }
                CheckResult::Skipped(reason) => {
                    (&mut skipped, format!("skipped  {name:12} {title} ({reason})"))
                }
            };
            *count += 1;
            writeln!(f, "{line}")?;
        }
        write!(f, "\n{passed} passed, {failed} failed")?;
        if skipped > 0 {
            write!(f, ", {skipped} skipped")?;
        }
        Ok(())
    }
}
