//! Events of runs and model calls, for observers: run history, traces, metrics and alarms.

mod call;
mod run;

pub use self::run::{
    CallEvent, CallEventKind, RunEvent, RunEventKind, RunObserver, RunObservers, now,
};
