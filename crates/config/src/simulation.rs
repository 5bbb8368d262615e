//! `simulation`: work and faults of mode `simulate`.

use super::seconds::ConfigSeconds;

section! {
    /// Work and faults of mode `simulate`.
    pub struct SimulationConfig {
        /// Seed of all random choices. The same seed gives the same run.
        pub seed: u64,
        /// Typical duration of a run. A few runs take hundreds of times as long.
        pub run_seconds: ConfigSeconds = ConfigSeconds::new(1),
        pub faults: SimulationFaults,
    }

    /// Simulated faults, each as a percentage of runs.
    pub struct SimulationFaults {
        /// Percentage of runs whose workflow raises an exception.
        #[schemars(range(min = 0.0, max = 100.0))]
        pub raise: f64,
        /// Percentage of runs whose workflow never returns.
        #[schemars(range(min = 0.0, max = 100.0))]
        pub hang: f64,
        /// Percentage of runs whose runner dies.
        #[schemars(range(min = 0.0, max = 100.0))]
        pub crash: f64,
        /// Percentage of runs without a reachable inference server.
        #[schemars(range(min = 0.0, max = 100.0))]
        pub model_unavailable: f64,
    }
}
