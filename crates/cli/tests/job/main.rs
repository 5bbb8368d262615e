//! `rollway run`, `check`, `debug`, `top` as their users meet them: the real command on the example
//! of the README, with fewer steps, or on a job that is made up.

#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test, and says where")]

mod debug;
mod input_errors;
mod kill;
mod learn;
mod stop;
mod top;
mod trainer_program;
mod two_processes;
mod view;
mod workspace;
