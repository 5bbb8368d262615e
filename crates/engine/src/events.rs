//! Events of runs and model calls, for observers: run history, traces, metrics and alarms.

mod call;
mod run;

pub use self::run::{Call, Moment, Observer, Observers, Seen, What, now};
