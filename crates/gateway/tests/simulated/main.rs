//! The simulated inference server, seen through a plain HTTP client.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;
mod crowd;
mod openai;
mod sglang;
mod vllm;
mod words;
