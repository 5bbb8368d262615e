//! Translation between the APIs that clients of the gateway speak and the APIs of inference
//! servers. Nothing here does I/O.
//!
//! ```text
//! client ──► ClientApi::parse ──► ModelCall ──► ServerApi::upstream_body ──► server
//! client ◄── StreamRenderer / ClientApi::render_body ◄── ResponseParser ◄─── server
//!                                                        └─► ModelResponse ─► recording
//! ```
//!
//! The internal form of calls and responses is the OpenAI API of the call's [`CallKind`]. A
//! [`ClientApi`] translates a client's API to this form and back, a [`ServerApi`] adds the fields
//! that return token ids and removes them from the response again. Both have a registry:
//! [`client_api::CLIENT_APIS`] and [`server_api::server_api`].

pub mod client_api;
mod error;
pub mod json_shape;
mod model_call;
pub mod replay;
pub mod request_policy;
mod response;
pub mod server_api;
pub mod sse;

pub use rollway_base::ServerKind;

pub use self::client_api::{ClientApi, StreamRenderer};
pub use self::error::{CallError, ErrorKind, openai_error};
pub use self::model_call::{CallKind, CallLabels, ModelCall};
pub use self::response::{ModelResponse, ResponseChoice, ResponseEnd};
pub use self::server_api::{
    ResponseParseError, ResponseParser, ServerApi, TokenSource, UpstreamBody,
};
