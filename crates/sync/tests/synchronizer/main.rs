//! The synchronizer: hosting, membership, outcomes of waits, and publication of weights.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod folder;
mod host;
mod http;
mod memory;
mod metrics;
mod takeover;
mod world;
