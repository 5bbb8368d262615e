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
const LOT: usize = 256;

fn main() {
    // `cargo test --benches` only checks that it runs.
    let whole = std::env::args().any(|arg| arg == "--bench");
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    // Experiences of about 1 kB and 32 kB.
    for (tokens, lots) in [(80, 40), (3_500, 12)] {
        let folder = folder.path().join(tokens.to_string());
        fs::create_dir(&folder).unwrap();
        let work = Work::new(tokens, if whole { lots } else { 1 });
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
    lots: usize,
    size: usize,
}

impl Work {
    fn new(tokens: usize, lots: usize) -> Self {
        let experiences: Vec<_> = (0..LOT).map(|row| experience(row, tokens)).collect();
        let payloads: Vec<_> = experiences.iter().map(|one| Sample::new(one).unwrap()).collect();
        let size = payloads.iter().map(|sample| sample.payload.len()).sum::<usize>() / LOT;
        println!("\n{lots} batches of {LOT} experiences of {size} bytes");
        println!("{:40} {:>14} {:>10}", "", "experiences/s", "MB/s");
        Self { experiences, payloads, lots, size }
    }

    /// The batches of a round, with their own ids.
    fn lots(&self, round: usize) -> Vec<WriteBatch> {
        let lot = |lot: usize| {
            let sample = |(row, experience): (usize, &Experience)| {
                let mut experience = experience.clone();
                experience.eid.batch = ((round * self.lots + lot) as i64).into();
                experience.eid.suffix = format!("{row:06x}");
                Sample::new(&experience).unwrap()
            };
            let samples = self.experiences.iter().enumerate().map(sample).collect();
            WriteBatch { key: format!("{round}/{lot}").into(), samples }
        };
        (0..self.lots).map(lot).collect()
    }

    fn limits(&self, folder: &Path) {
        self.timed("copy (limit)", self.lots, || {
            for sample in &self.payloads {
                black_box(sample.payload.to_vec());
            }
        });
        let lots = self.lots(0);
        let (sender, receiver) = mpsc::sync_channel(16);
        self.timed("std::sync::mpsc (limit)", 1, || {
            thread::scope(|scope| {
                scope.spawn(|| lots.iter().for_each(|lot| sender.send(lot.clone()).unwrap()));
                receiver.iter().take(self.lots).for_each(|lot| drop(black_box(lot)));
            });
        });
        let mut file = File::create(folder.join("raw")).unwrap();
        self.timed("write and fsync (limit)", self.lots, || {
            for sample in &self.payloads {
                file.write_all(&sample.payload).unwrap();
            }
            file.sync_data().unwrap();
        });
    }

    fn columns(&self) {
        let batch = to_batch(&self.experiences).unwrap();
        self.timed("to_batch", self.lots, || drop(black_box(to_batch(&self.experiences))));
        self.timed("from_batch", self.lots, || drop(black_box(from_batch(&batch))));
        self.timed("to_ipc", self.lots, || drop(black_box(to_ipc(&self.experiences))));
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
                let mut lots = self.lots(0).into_iter();
                self.timed(&format!("{name}: {action}"), self.lots, || {
                    writer.write(&lots.next().unwrap()).unwrap();
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
                self.lots(round).iter().for_each(|lot| drop(writer.write(lot).unwrap()));
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
        self.timed(name, self.lots, || {
            assert_eq!(reader.read(&request(LOT)).unwrap().samples.len(), LOT);
        });
    }

    /// Lets SQLAlchemy write the same bytes, if available.
    fn python(&self, name: &str, address: &str) {
        let Some(python) = std::env::var_os("ROLLWAY_BENCH_PYTHON") else { return };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/sqlalchemy_writer.py");
        let numbers = [self.lots, LOT, self.size].map(|number| number.to_string());
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
        let count = (self.lots * LOT) as f64 / took.as_secs_f64();
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
