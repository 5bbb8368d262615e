//! Programs that tests and benchmarks need: fetched, unpacked and started on first use.

mod apt;
pub(crate) mod chromium;
mod gguf;
pub(crate) mod llama;
pub(crate) mod node;
pub(crate) mod postgres;
