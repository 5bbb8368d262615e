//! Both ends of the wire, against each other and against the rest of the world.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conformance;
mod flow;
mod handshake;
mod rubbish;
mod support;
