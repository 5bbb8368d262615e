//! The model gateway: every model call of every run goes through it, and is routed, recorded and
//! labelled on its way. It knows runs by their keys, and nothing about batches.
//!
//! The way of a call: [`http`] takes it in (`access` says whose it is), [`call`] reads it,
//! [`models`] picks the server, [`dialect`] says in which words that server is asked and what its
//! answer means, [`record`] keeps what the trainer will need. [`serve`] is what agents elsewhere
//! get on top: feedback and commits that survive a restart.

pub mod access;
pub mod answer;
pub mod call;
pub mod dialect;
pub mod error;
pub mod gateway;
pub mod http;
pub mod models;
pub mod record;
pub mod serve;
pub mod sse;
