//! `rollway run`, `check`, `debug`, `top` as their users meet them: the real command on the example
//! of the README, with fewer steps, or on a job that is made up.

#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test, and says where")]

mod apart;
mod debug;
mod kill;
mod learn;
mod look;
mod mistakes;
mod place;
mod program;
mod stop;
mod top;
