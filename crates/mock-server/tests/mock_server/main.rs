//! The mock server, seen through a plain HTTP client.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;
mod concurrency;
mod openai;
mod recorded;
mod sglang;
mod tokenizer;
mod vllm;
