//! The synchronizer of a job: membership of explorers and trainer, newest weights, waits for newer
//! ones, and the folders of weights.
//!
//! Knows neither inference servers nor experiences. One process hosts it (`synchronizer.address`,
//! or the first to start), the others use HTTP. Every wait has a deadline and a typed outcome.
//!
//! ```text
//! Synchronizer ─► link ─┬─► host: SyncDriver (SyncCore + clock), WeightStore, FolderWatch
//!  (any process)        └─► sync_client: HTTP ─► routes of the host
//! ```
//!
//! `rollway_core::sync` decides, `sync_driver` waits, `discovery` chooses the host and replaces one
//! that is gone, `weight_folder` publishes files atomically, `folder_watch` observes changes of a
//! folder, `checkpoints` finds the newest weights in it and `transport` has the differences between
//! the sync methods.

mod address_file;
mod checkpoints;
mod client;
mod discovery;
mod error;
pub mod folder_watch;
mod host;
mod link;
mod membership;
mod messages;
mod options;
mod routes;
mod store;
mod sync_client;
mod sync_driver;
mod synchronizer;
pub mod tensor_files;
mod transport;
pub mod weight_folder;

pub use self::address_file::retention;
pub use self::checkpoints::{CheckpointFolder, NewestWeights, WeightFinder};
pub use self::discovery::SECRET;
pub use self::error::SyncError;
pub use self::membership::Membership;
pub use self::messages::{
    FailedLoad, MemberStatus, NewWeightsMessage, PublishedWeights, ServerFleet, SyncStatus,
    TrainMetrics, TrainMetricsPage, TrainerProgress, WaitStatus, WeightLocation, WeightRequest,
    WeightWaitResult,
};
pub use self::options::SynchronizerOptions;
pub use self::synchronizer::Synchronizer;
pub use self::transport::{WeightTransport, served_weights, transport};
