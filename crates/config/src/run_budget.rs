//! `explorer.run_budget`: model usage of one run.

use super::seconds::ConfigSeconds;

section! {
    /// Model usage of one run, enforced by the gateway: a call beyond it gets a final message that
    /// is not recorded, so that agents end normally. Retries of clients and calls of auxiliary
    /// models are free.
    pub struct RunBudgetConfig {
        /// Maximum calls of the trained model. Absent: no limit.
        #[schemars(range(min = 1))]
        pub model_calls: Option<u64>,
        /// Maximum prompt tokens over all calls. Absent: no limit.
        #[schemars(range(min = 1))]
        pub prompt_tokens: Option<u64>,
        /// Maximum completion tokens over all calls; `max_tokens` of a call is lowered to the
        /// rest. Absent: no limit.
        #[schemars(range(min = 1))]
        pub completion_tokens: Option<u64>,
        /// Maximum completions with tool calls. Absent: no limit.
        #[schemars(range(min = 1))]
        pub tool_turns: Option<u64>,
        /// Maximum time from the first call of the run. Calls in flight are not cut off;
        /// `explorer.max_timeout` does that. Absent: no limit.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub duration: Option<ConfigSeconds>,
    }
}
