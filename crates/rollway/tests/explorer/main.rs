//! The explorer with the embedded model, workflows in Rust and a scripted trainer.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod alarms;
mod bench;
mod meters;
mod pair;
mod quarantine;
mod resume;
mod servers;
mod short;
mod steps;
mod stop;
mod trainer;
mod waits;
mod world;
