//! Run history: contains every run exactly once, while a job runs and after its end or kill.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod calls;
mod help;
mod keep;
mod many;
mod reports;
mod runs;
