//! Buffers in SQL databases: the same behaviour in SQLite and in a real PostgreSQL server, and what
//! is left of it when disks are full, connections are cut and processes are killed.

#[path = "sql/bed.rs"]
mod bed;
#[path = "sql/contract.rs"]
mod contract;
#[path = "sql/faults.rs"]
mod faults;
#[path = "sql/kill.rs"]
mod kill;
#[path = "sql/pool.rs"]
mod pool;
#[path = "sql/proxy.rs"]
mod proxy;
#[path = "sql/server.rs"]
mod server;
