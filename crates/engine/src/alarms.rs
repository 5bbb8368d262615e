//! Alarms: what a person should look into, said in words.
//!
//! ```text
//! observe::Seen (runs, attempts) ──┐
//! Event (steps, weights) ──────────┼─► Watchdog (decides, without a clock) ─► Event::Alarm
//! Drops (what did not fit) ────────┘
//! ```

/// All kinds of alarms, as they are called in events, in `summary.json` and in the metric
/// `rollway_alarm`.
pub const KINDS: [&str; 6] =
    ["no_progress", "consecutive_failures", "staleness", "starvation", "dropped", "runners_broken"];
