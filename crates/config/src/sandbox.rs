//! `explorer.sandbox` and `explorer.stages`: sandboxes and stages of runs.

use super::seconds::ConfigSeconds;

section! {
    /// Sandboxes of workflows (`rw.sandbox`). Limits of number and rate are those of one machine.
    pub struct SandboxConfig {
        /// Folder of the leases, by which sandboxes are ended after a crash. Absent: `sandboxes` in
        /// the folder of the job; for a scheduler in Python a folder of the user, below that for
        /// temporary files.
        pub folder: Option<String>,
        /// Maximum time from the start of a sandbox to its end. A run that still uses it has failed
        /// with `timeout`.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub lease: ConfigSeconds = ConfigSeconds::new(3600),
        /// Maximum sandboxes at the same time. Further ones wait.
        #[schemars(range(min = 1))]
        pub max_sandboxes: u32 = 256,
        /// Maximum starts per second. Further ones wait.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub starts_per_second: f64 = 20.0,
        /// Maximum time for a start, with both waits.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub start_timeout: ConfigSeconds = ConfigSeconds::new(120),
        /// Maximum time for the end of a sandbox. After it the reaper takes over.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub close_timeout: ConfigSeconds = ConfigSeconds::new(30),
        /// Interval at which the reaper looks for sandboxes without an owner and past their lease.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub check_interval: ConfigSeconds = ConfigSeconds::new(1),
        /// Bytes that are kept of each output stream of a command. The middle of a longer one is
        /// dropped and counted.
        pub max_output_bytes: u64 = 1 << 20,
        /// Maximum size of a file that is read from a sandbox or written to it.
        pub max_file_bytes: u64 = 64 << 20,
        pub local: LocalSandboxConfig,
    }

    /// Limits of every process of a local sandbox.
    pub struct LocalSandboxConfig {
        /// Processor time of one process. Absent: no limit.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub cpu_time: Option<ConfigSeconds>,
        /// Address space of one process. Programs with a just-in-time compiler reserve much more
        /// than they use. Absent: no limit.
        #[schemars(range(min = 1))]
        pub memory_bytes: Option<u64>,
        /// Size of a file that a process writes. Null: no limit.
        #[schemars(range(min = 1))]
        pub file_bytes: Option<u64> = Some(4 << 30),
        /// Processes and threads of the user of the workers, in all sandboxes and outside of them.
        /// Not enforced for root. Absent: no limit.
        #[schemars(range(min = 1))]
        pub processes: Option<u32>,
        /// Open file descriptors of one process. Absent: no limit.
        #[schemars(range(min = 3))]
        pub open_files: Option<u32>,
    }

    /// Deadlines of the stages of a run. A run that exceeds one fails with `timeout`, and the
    /// message names the stage. `explorer.max_timeout` applies to the whole attempt.
    pub struct StagesConfig {
        /// Maximum time for the start of the sandbox and its preparation. Absent: no limit of its
        /// own.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub setup_timeout: Option<ConfigSeconds>,
        /// Maximum time for the agent. Absent: no limit of its own.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub agent_timeout: Option<ConfigSeconds>,
        /// Maximum time for the reward. Absent: no limit of its own.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub reward_timeout: Option<ConfigSeconds>,
        /// Maximum time for the end of the sandbox. After it the reaper ends the sandbox; the run
        /// does not fail.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub teardown_timeout: Option<ConfigSeconds> = Some(ConfigSeconds::new(60)),
        /// Ends of an agent after which the reward is computed nevertheless. After others the run
        /// fails.
        pub reward_after: Vec<AgentEnd> = vec![AgentEnd::Timeout, AgentEnd::Budget],
    }
}

choices! {
    /// End of an agent before it was done.
    pub enum AgentEnd {
        /// The stage `agent` exceeded its deadline.
        #[default]
        Timeout,
        /// A part of `explorer.run_budget` was used up.
        Budget,
        /// The program of the agent ended with an exit code other than 0.
        Failed,
    }
}
