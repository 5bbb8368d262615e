//! Buffers in SQL databases: the same behaviour in SQLite and in a real PostgreSQL server, and what
//! is left of it when disks are full, connections are cut and processes are killed.

mod bed;
mod contract;
mod faults;
mod kill;
mod pool;
mod proxy;
