//! `dashboard`: web pages of a job.

section! {
    /// Web pages of a job.
    pub struct DashboardConfig {
        /// Serves the dashboard while the job runs. `rollway view` shows the folder of a job in any
        /// case.
        pub enable: bool = true,
        /// Address to listen on, as `host:port`; port 0: any free one.
        pub listen: String = "127.0.0.1:0".to_owned(),
        /// Environment variable that holds the token of the dashboard. Absent: a random token,
        /// printed with the address.
        pub token_env: Option<String>,
        /// Records a history of runs in the job's folder.
        pub history: bool = true,
        /// Maximum number of runs in the history; older ones are dropped and counted.
        #[schemars(range(min = 1))]
        pub max_runs: u64 = 1_000_000,
        /// Maximum bytes of trajectories (messages, tokens) in the history; older ones are dropped
        /// and counted.
        pub max_trajectory_bytes: u64 = 256 << 20,
    }
}
