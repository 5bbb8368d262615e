//! Lots and reads in few words.

#![expect(dead_code, reason = "every test file uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rollway_data::buffer::queue::{QueueClock, QueueFullPolicy, QueueOptions};
use rollway_data::buffer::{
    Buffer, ExperienceQueue, ExperienceReader, ExperienceWriter, ReadRequest, ReadResult,
};
use rollway_data::{Sample, WriteBatch};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Returns options under which a full queue refuses at once.
pub(crate) fn options() -> QueueOptions {
    QueueOptions {
        when_full: QueueFullPolicy::Wait { timeout: Duration::ZERO },
        ..QueueOptions::default()
    }
}

pub(crate) fn open(options: QueueOptions) -> Arc<ExperienceQueue> {
    ExperienceQueue::open(options).unwrap()
}

pub(crate) fn writer(queue: &ExperienceQueue) -> Box<dyn ExperienceWriter> {
    queue.writer("explorer").unwrap()
}

pub(crate) fn reader(queue: &ExperienceQueue) -> Box<dyn ExperienceReader> {
    queue.reader("trainer").unwrap()
}

pub(crate) fn sample(id: &str, model_version: u64, bytes: usize) -> Sample {
    let payload = Bytes::from(vec![id.len() as u8; bytes]);
    Sample { id: id.into(), model_version, reward: Some(0.5), payload }
}

/// Returns a lot of small samples, which are called like their names and have one version.
pub(crate) fn lot_of(key: &str, version: u64, ids: &[&str]) -> WriteBatch {
    WriteBatch { key: key.into(), samples: ids.iter().map(|id| sample(id, version, 8)).collect() }
}

pub(crate) fn lot(key: &str, ids: &[&str]) -> WriteBatch {
    lot_of(key, 0, ids)
}

/// Asks for what is there now.
pub(crate) fn now(count: usize) -> ReadRequest {
    ReadRequest { count, timeout: Duration::ZERO, min_model_version: 0, keep: false }
}

pub(crate) fn keep(count: usize) -> ReadRequest {
    ReadRequest { keep: true, ..now(count) }
}

pub(crate) fn ids(taken: &ReadResult) -> Vec<&str> {
    taken.samples.iter().map(|sample| &*sample.id).collect()
}

/// Waits until something is so, which another thread brings about.
pub(crate) fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

/// A clock that goes when it is told to.
#[derive(Debug, Default)]
pub(crate) struct Manual(AtomicU64);

impl Manual {
    pub(crate) fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl QueueClock for Manual {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}
