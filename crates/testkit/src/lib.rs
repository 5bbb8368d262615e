//! Helpers of tests and benchmarks that several crates share: a PostgreSQL server, and test
//! programs that start themselves again to be killed.
//!
//! Only a dev-dependency. It needs nothing but `std`, so that it costs no build time.

mod child;
pub mod postgres;

pub use child::child_test;
