//! The model gateway: every model call of every run goes through it, and is routed, recorded and
//! labelled on its way. It knows runs by their keys, and nothing about batches.
//!
//! Path of a call: [`http`] receives it (`keys` authenticates the client), `rollway_model_api`
//! parses it, [`models`] selects the server, `rollway_model_api` translates the request and the
//! response, `rollway_recording` stores the turns for the trainer. [`serve`] adds feedback and
//! commits for agents outside the job, which survive a restart.

mod call_observer;
pub mod gateway;
pub mod http;
pub mod keys;
mod lru;
pub mod models;
mod options;
pub mod serve;
