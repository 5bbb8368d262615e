//! `explorer.serve_retention`: limits of the recorded choices of mode `serve`.

use super::seconds::ConfigSeconds;

section! {
    /// Limits of the recorded choices of mode `serve`. Choices with feedback that wait for a commit
    /// are never removed; of the others the oldest are removed first and counted.
    pub struct HistoryConfig {
        /// Maximum number of recorded choices, including committed ones. Of a committed choice only
        /// the name is kept, to recognize repeated feedback.
        #[schemars(range(min = 1))]
        pub max_rows: u64 = 1_000_000,
        /// Maximum bytes of recorded choices without feedback.
        #[schemars(range(min = 1))]
        pub max_bytes: u64 = 16 << 30,
        /// Maximum age of a recorded choice.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub max_age: ConfigSeconds = ConfigSeconds::new(14 * 24 * 3600),
        /// Maximum bytes of recorded choices that wait for a commit; beyond it feedback is refused.
        #[schemars(range(min = 1))]
        pub max_queued_bytes: u64 = 2 << 30,
    }
}
