//! The embedded model behind the gateway, and its trainer on a buffer.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;
mod gateway;
mod kill;
mod labels;
mod server;
mod styles;
mod sums;
mod trainer;
mod whole;
