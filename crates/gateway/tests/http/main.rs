//! The gateway over HTTP, in front of mock servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod access;
mod basics;
mod budgets;
mod cancel;
mod client_apis;
mod errors;
mod exact;
mod failover;
mod fuzz;
mod help;
mod limits;
mod lineage;
mod many;
mod once;
mod restart;
mod secure;
mod serve;
mod traced;
mod update;
