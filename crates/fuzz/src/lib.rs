//! Fuzz targets: everything that arrives from outside, each given to the code that parses it in the
//! product. An input must neither panic nor hang nor take memory beyond its bound.
//!
//! `tests/short_run.rs` runs the seeds, the regressions and a fixed number of mutations of them
//! with every `cargo test`. `cargo xtask fuzz` runs the same targets guided by coverage, for any
//! time (`src/bin/fuzz.rs`).

#![expect(unsafe_code, reason = "only an allocator knows how much is allocated")]

mod input;
mod memory;
mod mutate;
mod targets;

use std::panic::PanicHookInfo;

pub use self::mutate::Mutator;

/// A parser, or several of one kind, with valid inputs.
#[derive(Debug)]
pub struct FuzzTarget {
    pub name: &'static str,
    /// Maximum length of an input.
    pub max_bytes: usize,
    /// Bytes that an input may take: so many and `per_byte` for each of its bytes.
    memory: usize,
    per_byte: usize,
    parse: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    targets::worker_protocol::TARGET,
    targets::reader_protocol::TARGET,
    targets::experience_payload::TARGET,
    targets::configuration::TARGET,
    targets::client_requests::TARGET,
    targets::server_responses::TARGET,
    targets::job_files::TARGET,
    targets::taskset_files::TARGET,
];

impl FuzzTarget {
    /// Returns the target of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Returns valid inputs.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }

    /// Parses an input. Panics if it breaks a rule or takes too much memory.
    pub fn check(&self, input: &[u8]) {
        let ((), peak) = memory::measured(|| (self.parse)(input));
        let bound = self.memory + self.per_byte * input.len();
        assert!(peak <= bound, "{} bytes took {peak} bytes, the bound is {bound}", input.len());
    }
}

/// Returns whether a panic may be one of the readers of Arrow and Parquet, which the product
/// catches: some damage to a file makes them panic. One that is not caught still fails.
pub fn is_of_columnar_reader(panic: &PanicHookInfo<'_>) -> bool {
    let of_crate = |name: &str| {
        panic.location().is_some_and(|location| location.file().contains(&format!("/{name}-")))
    };
    ["arrow", "parquet"].into_iter().any(of_crate)
}
