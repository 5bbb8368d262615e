//! `alarms`: conditions that need attention.

use super::seconds::ConfigSeconds;

section! {
    /// Conditions that need attention. Alarms appear in the log, on the dashboard and as a metric.
    pub struct AlarmsConfig {
        /// Maximum time without an ended run while runs are pending or running. `null`: no alarm.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub no_progress: Option<ConfigSeconds> = Some(ConfigSeconds::new(300)),
        /// Consecutive failed runs that raise the alarm. `null`: no alarm.
        #[schemars(range(min = 1))]
        pub consecutive_failures: Option<u32> = Some(50),
        pub on_consecutive_failures: OnConsecutiveFailures,
        /// Maximum staleness of experiences in train steps, averaged over a step. `null`: no alarm.
        #[schemars(range(min = 0.0))]
        pub staleness: Option<f64>,
        /// Maximum waiting time of tasks of one workflow, as a multiple of the others'.
        /// `null`: no alarm.
        #[schemars(range(min = 1.0))]
        pub starvation: Option<f64> = Some(10.0),
    }
}

impl AlarmsConfig {
    /// Tells whether any alarm is enabled.
    pub const fn is_any(&self) -> bool {
        self.no_progress.is_some()
            || self.consecutive_failures.is_some()
            || self.staleness.is_some()
            || self.starvation.is_some()
    }
}

choices! {
    /// Reaction to `consecutive_failures` failed runs.
    pub enum OnConsecutiveFailures {
        /// Only raises the alarm.
        #[default]
        Warn,
        /// Ends the job with an error; the same command resumes it.
        Stop,
    }
}
