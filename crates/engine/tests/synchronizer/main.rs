//! The synchronizer: who hosts it, who joins, what waits come to, which way weights take, and the
//! embedded trainer behind it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod folder;
mod host;
mod http;
mod memory;
mod styles;
#[path = "../tiny/sums.rs"]
mod sums;
mod takeover;
mod world;
