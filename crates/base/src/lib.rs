//! Helpers that several crates share: secrets, addresses, limits of listeners, error chains,
//! suggestions for misspelled names, atomic files, folders, file locks, human-readable durations,
//! and the kinds of servers and buffers.
//!
//! Owns no domain logic, starts no task and never blocks on the network. It depends on no other
//! crate of the workspace.

mod address;
pub mod address_file;
pub mod atomic_file;
mod buffer_kind;
mod error_chain;
mod file_lock;
mod fingerprint;
pub mod folder;
pub mod human;
pub mod listener;
pub mod net;
mod number_file;
pub mod open_files;
mod resource_remedy;
mod secret;
mod server_kind;
pub mod suggest;
pub mod tls;

pub use address::{Address, AddressError};
pub use buffer_kind::{BufferAddressError, BufferKind, BufferLocation, BufferStorage};
pub use error_chain::error_chain;
pub use file_lock::{FileLock, FileLockError};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use number_file::NumberFile;
pub use resource_remedy::resource_remedy;
pub use secret::{EmptySecret, Secret, SecretError, random_bytes};
pub use server_kind::{ServerKind, UnknownServerKind};
