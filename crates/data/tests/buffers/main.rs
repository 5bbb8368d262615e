//! All buffers through the public API: the common contract, and what is special about SQLite, a
//! real PostgreSQL server, files and queues when disks are full, connections are cut and processes
//! are killed.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]

mod contract;
mod damage;
mod faults;
mod files;
mod kill;
mod pool;
mod postgres_tls;
mod proxy;
mod queue;
mod queue_disk;
mod queue_priority;
mod reader;
mod sql;
mod support;
