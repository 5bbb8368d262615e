//! The history of runs: every run is in it exactly once, with what became of it, while a job runs
//! and after it has ended or was killed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod calls;
mod help;
mod keep;
mod many;
mod runs;
