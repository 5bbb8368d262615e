//! Models behind the gateway: routing, health checks, removal and updates.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]

mod changed_outside;
mod connections;
mod failed_updates;
mod fleet;
mod load;
mod missing_endpoints;
mod removal;
mod restart;
mod stand_in;
mod updates;
mod use_of_servers;
