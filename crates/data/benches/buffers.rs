//! How many experiences per second go into a buffer and out of it, beside what the disk takes for
//! the same bytes. All figures come from one run: compare them with each other, not with another
//! day's.
//!
//! `cargo xtask bench buffers`. With `ROLLWAY_BENCH_PYTHON`, a Python that has SQLAlchemy and
//! psycopg, a plain writer of pickled rows does the same work beside it.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{Buffer, PostgresBuffer, ReadRequest, SqliteBuffer};
use rollway_data::{Sample, WriteBatch};
use rollway_testkit::postgres::Server;

const PER_LOT: usize = 256;

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let whole = std::env::args().any(|word| word == "--bench");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Server::start(&[]);
    for (size, lots) in [(1 << 10, 100), (32 << 10, 20)] {
        let lots = if whole { lots } else { 1 };
        let work = Work { size, lots };
        println!("\n{lots} lots of {PER_LOT} experiences of {size} bytes");
        println!("{:40} {:>14} {:>10}", "", "experiences/s", "MB/s");
        work.show("disk: write and fsync (limit)", disk(&work, folder.path()));

        let table = || SqlOptions { table: format!("of_{size}"), ..SqlOptions::default() };
        let path = folder.path().join(format!("of_{size}.db")).display().to_string();
        let sqlite = SqliteBuffer::open(&path, table()).expect("a new file");
        work.through("SQLite", &sqlite);
        work.python("SQLite", &format!("sqlite:///{path}.plain"));

        let address = server.address("postgres");
        let postgres = PostgresBuffer::open(&address, table()).expect("the server is there");
        work.through("PostgreSQL", &postgres);
        work.python("PostgreSQL", &address.replace("postgresql:", "postgresql+psycopg:"));
    }
}

/// What every buffer is given.
struct Work {
    size: usize,
    lots: usize,
}

impl Work {
    fn lots(&self) -> impl Iterator<Item = WriteBatch> {
        // Bytes that nobody can compress.
        let mut state = 7_u64;
        let payload: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(self.size)
        .collect();
        let payload = bytes::Bytes::from(payload);
        (0..self.lots).map(move |lot| {
            let sample = |number| Sample {
                id: format!("{lot}/{number}/0/0/{number:06x}").into(),
                model_version: lot as u64,
                reward: Some(0.5),
                payload: payload.clone(),
            };
            WriteBatch {
                key: format!("lot-{lot}").into(),
                samples: (0..PER_LOT).map(sample).collect(),
            }
        })
    }

    /// Writes everything into a buffer, then reads everything.
    fn through(&self, name: &str, buffer: &dyn Buffer) {
        let mut writer = buffer.writer("bench").expect("a writer");
        let mut took = Duration::ZERO;
        for lot in self.lots() {
            let begin = Instant::now();
            let written = writer.write(&lot).expect("a lot that is stored");
            took += begin.elapsed();
            assert_eq!(written.stored, PER_LOT);
        }
        self.show(&format!("{name}: write"), took);
        let mut reader = buffer.reader("bench").expect("a reader");
        let ask = ReadRequest {
            count: PER_LOT,
            timeout: Duration::ZERO,
            min_model_version: 0,
            keep: false,
        };
        let begin = Instant::now();
        for _ in 0..self.lots {
            assert_eq!(reader.read(&ask).expect("a read").samples.len(), PER_LOT);
        }
        self.show(&format!("{name}: read"), begin.elapsed());
    }

    /// Lets SQLAlchemy write the same, if there is one.
    fn python(&self, name: &str, address: &str) {
        let Some(python) = std::env::var_os("ROLLWAY_BENCH_PYTHON") else {
            return;
        };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/sqlalchemy_writer.py");
        let numbers = [self.lots, PER_LOT, self.size].map(|number| number.to_string());
        let said = Command::new(python).arg(script).arg(address).args(numbers).output();
        let said = said.expect("Python starts");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let seconds = String::from_utf8_lossy(&said.stdout).trim().parse().expect("seconds");
        let name = format!("{name}: write by SQLAlchemy, pickle");
        self.show(&name, Duration::from_secs_f64(seconds));
    }

    fn show(&self, name: &str, took: Duration) {
        let count = (self.lots * PER_LOT) as f64 / took.as_secs_f64();
        println!("{name:40} {count:>14.0} {:>10.1}", count * self.size as f64 / 1e6);
    }
}

/// Appends the same bytes to a file, and waits for the disk after each lot.
fn disk(work: &Work, folder: &Path) -> Duration {
    let mut file = File::create(folder.join("raw")).expect("a file");
    let mut took = Duration::ZERO;
    for lot in work.lots() {
        let bytes: Vec<u8> =
            lot.samples.iter().flat_map(|sample| sample.payload.to_vec()).collect();
        let begin = Instant::now();
        file.write_all(&bytes).and_then(|()| file.sync_data()).expect("the disk takes it");
        took += begin.elapsed();
    }
    took
}
