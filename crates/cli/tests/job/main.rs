//! `rollway init`, `run`, `check`, `debug`, `top` and `view` as processes: on the README's example
//! with fewer steps, on written jobs, or on a fake job.

#![expect(clippy::unwrap_used, reason = "a panic fails the test and names the line")]

mod debug;
mod init;
mod input_errors;
mod kill;
mod kill_report;
mod learn;
mod no_result;
mod random_kills;
mod stop;
mod top;
mod trainer_program;
mod two_processes;
mod view;
mod workspace;
