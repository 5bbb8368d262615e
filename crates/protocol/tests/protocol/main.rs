//! Both ends of the worker protocol, against each other and against invalid peers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod flow;
mod handshake;
mod invalid_input;
mod tls;
