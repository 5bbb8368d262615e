//! The targets, one module each.

pub(crate) mod client_requests;
pub(crate) mod configuration;
pub(crate) mod experience_payload;
pub(crate) mod job_files;
mod raw_peer;
pub(crate) mod reader_protocol;
pub(crate) mod server_responses;
pub(crate) mod taskset_files;
pub(crate) mod worker_protocol;
