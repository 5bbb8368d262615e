//! The experience pipeline through its public interface.

mod advantages;
mod arguments;
mod faults;
mod filters;
mod metrics;
mod shaping;
mod store;
mod world;
