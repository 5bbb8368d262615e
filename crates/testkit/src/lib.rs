//! Test helpers shared by several crates: a PostgreSQL server, and test programs that start
//! themselves again to be killed.
//!
//! A dev-dependency that needs only `std`, so that it costs no build time.

mod child;
pub mod postgres;

pub use child::child_test;
