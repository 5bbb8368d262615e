//! Throughput of every buffer and of the conversion to columns, beside copies, channels and synced
//! writes of the same bytes. Compare figures of one run only.
//!
//! `cargo xtask bench buffers`. With `ROLLWAY_BENCH_PYTHON`, a Python with SQLAlchemy and psycopg,
//! a plain writer of pickled rows does the same work.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has no figures")]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rollway_base::Address;
use rollway_data::arrow::{from_batch, to_batch, to_ipc};
use rollway_data::buffer::queue::QueueOptions;
use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{
    Buffer, ExperienceQueue, ExperienceReader, JsonlBuffer, ParquetBuffer, PostgresBuffer,
    ReadRequest, SqliteBuffer,
};
use rollway_data::reader::{ReaderServerOptions, RetryTimeouts, connect, serve};
use rollway_data::{Sample, WriteBatch};
use rollway_experience::{Eid, Experience, ExperienceFields, Json};
use rollway_testkit::postgres::Server;

/// Samples of a write batch and of a read.
const SAMPLES_PER_WRITE: usize = 256;

fn main() {
    // `cargo test --benches` only checks that it runs.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    // Experiences of about 1 kB and 32 kB.
    for (tokens, write_batches) in [(80, 40), (3_500, 12)] {
        let folder = folder.path().join(tokens.to_string());
        fs::create_dir(&folder).unwrap();
        let work = Work::new(tokens, if whole { write_batches } else { 1 });
        work.limits(&folder);
        work.columns();
        work.buffers(&folder, &server);
    }
}

/// The work of every buffer.
struct Work {
    /// Experiences of one batch; batches differ in ids only.
    experiences: Vec<Experience>,
    payloads: Vec<Sample>,
    write_batches: usize,
    size: usize,
}

impl Work {
    fn new(tokens: usize, write_batches: usize) -> Self {
        let experiences: Vec<_> =
            (0..SAMPLES_PER_WRITE).map(|row| experience(row, tokens)).collect();
        let payloads: Vec<_> = experiences.iter().map(|one| Sample::new(one).unwrap()).collect();
        let size =
            payloads.iter().map(|sample| sample.payload.len()).sum::<usize>() / SAMPLES_PER_WRITE;
        println!("\n{write_batches} batches of {SAMPLES_PER_WRITE} experiences of {size} bytes");
        println!("{:40} {:>14} {:>10}", "", "experiences/s", "MB/s");
        Self { experiences, payloads, write_batches, size }
    }

    /// The batches of a round, with their own ids.
    fn write_batches(&self, round: usize) -> Vec<WriteBatch> {
        let batch = |batch: usize| {
            let sample = |(row, experience): (usize, &Experience)| {
                let mut experience = experience.clone();
                experience.eid.batch = ((round * self.write_batches + batch) as i64).into();
                experience.eid.suffix = format!("{row:06x}");
                Sample::new(&experience).unwrap()
            };
            let samples = self.experiences.iter().enumerate().map(sample).collect();
            WriteBatch { key: format!("{round}/{batch}").into(), samples }
        };
        (0..self.write_batches).map(batch).collect()
    }

    fn limits(&self, folder: &Path) {
        self.timed("copy (limit)", self.write_batches, || {
            for sample in &self.payloads {
                black_box(sample.payload.to_vec());
            }
        });
        let write_batches = self.write_batches(0);
        let (sender, receiver) = mpsc::sync_channel(16);
        self.timed("std::sync::mpsc (limit)", 1, || {
            thread::scope(|scope| {
                scope.spawn(|| {
                    write_batches.iter().for_each(|batch| sender.send(batch.clone()).unwrap())
                });
                receiver.iter().take(self.write_batches).for_each(|batch| drop(black_box(batch)));
            });
        });
        let mut file = File::create(folder.join("raw")).unwrap();
        self.timed("write and fsync (limit)", self.write_batches, || {
            for sample in &self.payloads {
                file.write_all(&sample.payload).unwrap();
            }
            file.sync_data().unwrap();
        });
    }

    fn columns(&self) {
        let batch = to_batch(&self.experiences).unwrap();
        self.timed("to_batch", self.write_batches, || drop(black_box(to_batch(&self.experiences))));
        self.timed("from_batch", self.write_batches, || drop(black_box(from_batch(&batch))));
        self.timed("to_ipc", self.write_batches, || drop(black_box(to_ipc(&self.experiences))));
    }

    fn buffers(&self, folder: &Path, server: &Server) {
        let queue = |path: Option<PathBuf>| {
            ExperienceQueue::open(QueueOptions { path, ..QueueOptions::default() }).unwrap()
        };
        let table = || SqlOptions { table: format!("of_{}", self.size), ..SqlOptions::default() };
        let path = folder.join("buffer.db").display().to_string();
        let postgres = server.address("postgres");
        let buffers: [(&str, Arc<dyn Buffer>); 6] = [
            ("queue", queue(None)),
            ("durable queue", queue(Some(folder.join("queue")))),
            ("SQLite", Arc::new(SqliteBuffer::open(&path, table()).unwrap())),
            ("PostgreSQL", Arc::new(PostgresBuffer::open(&postgres, table()).unwrap())),
            ("Parquet", Arc::new(ParquetBuffer::open(folder.join("lots.parquet")).unwrap())),
            ("JSON lines", Arc::new(JsonlBuffer::open(folder.join("lots.jsonl")).unwrap())),
        ];
        for (name, buffer) in buffers {
            let mut writer = buffer.writer("bench").unwrap();
            for action in ["write", "write known batches"] {
                let mut write_batches = self.write_batches(0).into_iter();
                self.timed(&format!("{name}: {action}"), self.write_batches, || {
                    writer.write(&write_batches.next().unwrap()).unwrap();
                });
            }
            self.read(&format!("{name}: read"), &mut *buffer.reader("bench").unwrap());
            if !matches!(name, "queue" | "SQLite") {
                continue;
            }
            let unix = Address::Unix(folder.join("reader.sock"));
            for (round, (socket, address)) in
                (1..).zip([("Unix socket", unix), ("TCP", Address::loopback())])
            {
                self.write_batches(round)
                    .iter()
                    .for_each(|batch| drop(writer.write(batch).unwrap()));
                let options = ReaderServerOptions { address, ..ReaderServerOptions::default() };
                let served = serve(Arc::clone(&buffer), options).unwrap();
                let (url, secret) = (served.url(), served.secret().clone());
                let mut reader = connect(&url, secret, "bench", RetryTimeouts::default()).unwrap();
                self.read(&format!("{name}: read, {socket}"), &mut reader);
                reader.read(&request(0)).unwrap();
            }
        }
        self.python("SQLite", &format!("sqlite:///{path}.plain"));
        self.python("PostgreSQL", &postgres.replace("postgresql:", "postgresql+psycopg:"));
    }

    fn read(&self, name: &str, reader: &mut dyn ExperienceReader) {
        self.timed(name, self.write_batches, || {
            assert_eq!(
                reader.read(&request(SAMPLES_PER_WRITE)).unwrap().samples.len(),
                SAMPLES_PER_WRITE
            );
        });
    }

    /// Lets SQLAlchemy write the same bytes, if available.
    fn python(&self, name: &str, address: &str) {
        let Some(python) = std::env::var_os("ROLLWAY_BENCH_PYTHON") else { return };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/sqlalchemy_writer.py");
        let numbers =
            [self.write_batches, SAMPLES_PER_WRITE, self.size].map(|number| number.to_string());
        let output = Command::new(python).arg(script).arg(address).args(numbers).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let seconds = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        let name = format!("{name}: write by SQLAlchemy, pickle");
        self.show(&name, Duration::from_secs_f64(seconds));
    }

    /// Prints the time of all batches, processed in `calls` calls.
    fn timed(&self, name: &str, calls: usize, mut work: impl FnMut()) {
        let begin = Instant::now();
        (0..calls).for_each(|_| work());
        self.show(name, begin.elapsed());
    }

    fn show(&self, name: &str, took: Duration) {
        let count = (self.write_batches * SAMPLES_PER_WRITE) as f64 / took.as_secs_f64();
        println!("{name:40} {count:>14.0} {:>10.1}", count * self.size as f64 / 1e6);
    }
}

fn request(count: usize) -> ReadRequest {
    ReadRequest { count, timeout: Duration::from_secs(60), min_model_version: 0, keep: false }
}

fn experience(row: usize, tokens: usize) -> Experience {
    let mut random = row as u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random >> 8
    };
    let prompt = tokens / 4;
    let info = Json::new(r#"{"model_version":7,"use_count":0,"task_index":{"index":3}}"#);
    Experience::new(ExperienceFields {
        eid: Eid { task: (row as i64 / 8).into(), run: row as u64 % 8, ..Eid::default() },
        tokens: (0..tokens).map(|_| (next() % 150_000) as i32).collect(),
        prompt_length: prompt,
        logprobs: Some((prompt..tokens).map(|_| -(next() as f32) / 1e6).collect()),
        action_mask: Some((prompt..tokens).map(|position| position % 7 != 0).collect()),
        reward: Some(f64::from(next() % 2)),
        info: info.unwrap(),
        metrics: [("accuracy".to_owned(), 0.5)].into(),
        response_text: Some("word ".repeat(tokens / 2)),
        ..ExperienceFields::default()
    })
    .unwrap()
}
