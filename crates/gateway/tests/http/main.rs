//! The gateway as its clients see it: over HTTP, in front of simulated servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod basics;
mod cancel;
mod errors;
mod failover;
mod fuzz;
mod help;
mod history;
mod limits;
mod many;
mod once;
mod restart;
mod serve;
mod traced;
mod update;
