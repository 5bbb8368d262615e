//! Mock inference server: speaks the API of vLLM, SGLang or any OpenAI-compatible server, and
//! generates tokens that depend on its seed, its weights and the prompt only. For tests, which
//! inspect its state and inject faults, and for trying a configuration without a GPU.
//!
//! `request` parses requests, `generation` generates tokens under the control of
//! `generation_state`, `server_api` has the endpoints and responses of each server kind, `script`
//! determines the generated tokens.

mod api_error;
mod control;
mod faults;
mod generation;
mod generation_state;
mod options;
mod record;
mod request;
mod response;
mod scoring;
mod script;
mod server;
mod server_api;
mod template;
mod text;
mod tools;

pub use self::control::MockControl;
pub use self::faults::MockFault;
pub use self::generation_state::MockCounts;
pub use self::options::MockServerOptions;
pub use self::record::{RecordedChoice, RecordedRequest, RecordedToken, RequestEnd};
pub use self::script::{CompletionLengths, Script, ScriptedTurn};
pub use self::server::MockServer;
pub use self::server_api::mocked_kinds;
pub use self::text::{END, Tokenizer};
