//! The synchronizer of a job: membership of explorers and trainer, the newest weights, and waits
//! for newer ones. Also the folders that weights are published in, and their discovery.
//!
//! Must not know how weights are loaded into inference servers, nor how experiences are made: no
//! gateway, no buffers, no scheduler.
//!
//! One process of a job hosts the synchronizer (`synchronizer.address`, or the first that starts);
//! the others reach it over HTTP. Every wait has a deadline and a typed outcome.
//!
//! ```text
//! Synchronizer ─► link ─┬─► host: Hub (decisions + clock), Store (weights), Watch (folder)
//!  (any process)        └─► remote: HTTP ─► routes of the host
//! ```
//!
//! `rollway_core::rendezvous` decides, `hub` waits, `find` chooses the host and replaces one that
//! is gone, `folder` publishes files atomically, `watch` observes changes of a folder and
//! `checkpoints` finds the newest weights in it.

mod address_file;
mod checkpoints;
mod client;
mod error;
mod find;
pub mod folder;
mod host;
mod hub;
mod link;
mod message;
mod options;
mod remote;
mod routes;
mod seat;
mod store;
mod synchronizer;
pub mod watch;
pub mod weights;

pub use self::checkpoints::{CheckpointFolder, NewestWeights, WeightFinder};
pub use self::error::SyncError;
pub use self::find::SECRET;
pub use self::message::{
    MemberStatus, NewWeightsMessage, PublishedWeights, SyncStatus, TrainerProgress, WaitStatus,
    WeightLocation, WeightRequest, WeightWaitResult,
};
pub use self::options::SynchronizerOptions;
pub use self::seat::Membership;
pub use self::synchronizer::Synchronizer;
