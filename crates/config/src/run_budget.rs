//! `explorer.run_budget`: model usage of one run.

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
    }
}
