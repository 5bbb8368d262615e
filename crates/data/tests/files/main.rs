//! Buffers of files: Parquet and JSON lines, through their public face.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]

mod crash;
mod damage;
mod flow;
mod support;
