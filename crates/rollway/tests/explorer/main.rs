//! The explorer, with the embedded model, workflows in Rust, and a trainer that does as it is told.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alarms;
mod bench;
mod meters;
mod pair;
mod resume;
mod short;
mod steps;
mod trainer;
mod world;
