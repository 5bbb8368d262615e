//! The history of runs: every run is in it exactly once, with what became of it, while a job runs
//! and after it has ended or was killed.

mod calls;
mod help;
mod keep;
mod many;
mod runs;
