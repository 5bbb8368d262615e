//! A simulated inference server: it speaks like vLLM, like SGLang, or like anything with OpenAI's
//! API, and says what its seed, its weights and the prompt make it say. For tests, which can look
//! inside and make it fail, and for trying a configuration without a GPU.
//!
//! `ask` reads requests, `generation` answers them token by token under the rule of `engine`,
//! `form*` gives the answers their shape, `script` knows what is said.

mod answer;
mod ask;
mod engine;
mod faults;
mod form;
mod form_sglang;
mod form_vllm;
mod generation;
mod inside;
mod openai;
mod options;
mod record;
mod refusal;
mod routes;
mod script;
mod server;
mod sglang;
mod template;
mod text;
mod tools;
mod vllm;

pub use self::engine::Counts;
pub use self::faults::Fault;
pub use self::inside::Inside;
pub use self::options::{Kind, Options};
pub use self::record::{Ended, Record, Said, Token};
pub use self::script::{Lengths, Script, expected};
pub use self::server::Server;
pub use self::text::{END, FIRST_WORD, MAX_WORDS, Tokenizer};
