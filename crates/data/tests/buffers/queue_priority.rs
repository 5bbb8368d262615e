//! The priority queue, and both orders against a naive model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use rollway_data::buffer::queue::{QueueClock, QueueOptions, ReplayOptions, ReplayPriority};
use rollway_data::buffer::{ReadEnd, ReadRequest};

use crate::support::{batch_of, ids, now, open_queue, queue_options, reader, writer};

/// A manually advanced clock.
#[derive(Debug, Default)]
struct ManualClock(AtomicU64);

impl QueueClock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

fn replay(replay: ReplayOptions) -> QueueOptions {
    QueueOptions { replay: Some(replay), ..queue_options() }
}

#[test]
fn the_newest_batch_is_read_first_and_as_a_whole() {
    let queue = open_queue(replay(ReplayOptions::default()));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&batch_of("1", 1, &["a", "b"])).unwrap();
    writer.write(&batch_of("2", 3, &["c", "d"])).unwrap();
    assert_eq!(ids(&reader.read(&now(1)).unwrap()), ["c"]);
    // An open batch is finished before a newer one.
    writer.write(&batch_of("3", 9, &["e"])).unwrap();
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["d", "e", "a", "b"]);
}

#[test]
fn a_full_queue_keeps_higher_priorities_and_counts_the_rest() {
    let queue = open_queue(QueueOptions { capacity: 2, ..replay(ReplayOptions::default()) });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&batch_of("1", 2, &["a", "b"])).unwrap();
    writer.write(&batch_of("2", 5, &["c"])).unwrap();
    let lower = writer.write(&batch_of("3", 1, &["d"])).unwrap();
    assert_eq!((lower.stored, lower.dropped["lower_priority"]), (0, 1));
    let equal = writer.write(&batch_of("4", 2, &["e"])).unwrap();
    assert_eq!((equal.stored, equal.dropped["replaced"]), (1, 2));
    // Dropped batches are known.
    assert_eq!(writer.write(&batch_of("3", 1, &["d"])).unwrap().known, 1);
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["c", "e"]);
}

#[test]
fn a_batch_returns_after_its_rest_until_its_uses_are_exhausted() {
    let clock = Arc::new(ManualClock::default());
    let priority =
        ReplayPriority::DecayLimitRandomization { decay: 2.0, use_count_limit: 2, sigma: 0.0 };
    let rest = Some(Duration::from_secs(10));
    let queue = open_queue(QueueOptions {
        clock: Arc::clone(&clock) as _,
        ..replay(ReplayOptions { priority, reuse_cooldown_time: rest, seed: 0 })
    });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&batch_of("1", 5, &["a"])).unwrap();
    writer.write(&batch_of("2", 4, &["b"])).unwrap();
    assert_eq!(ids(&reader.read(&now(1)).unwrap()), ["a"]);
    clock.0.fetch_add(10, Ordering::SeqCst);
    // "a" is back with priority 3, behind "b" with 4.
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["b", "a"]);
    clock.0.fetch_add(10, Ordering::SeqCst);
    // "a" was used twice; "b" comes a second time.
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["b"]);
    writer.write(&batch_of("3", 1, &["c"])).unwrap();
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["c"]);
    writer.close().unwrap();
    clock.0.fetch_add(10, Ordering::SeqCst);
    let taken = reader.read(&now(9)).unwrap();
    assert_eq!((ids(&taken), taken.end), (vec![], ReadEnd::Finished));
    assert_eq!(queue.usage().bytes, 0);
}

#[test]
fn noise_is_deterministic_in_the_seed() {
    let order = |seed| {
        let priority =
            ReplayPriority::DecayLimitRandomization { decay: 2.0, use_count_limit: 3, sigma: 5.0 };
        let queue = open_queue(replay(ReplayOptions { priority, reuse_cooldown_time: None, seed }));
        let (mut writer, mut reader) = (writer(&queue), reader(&queue));
        for id in ["a", "b", "c", "d", "e", "f"] {
            writer.write(&batch_of(id, 1, &[id])).unwrap();
        }
        let taken = reader.read(&now(9)).unwrap();
        taken.samples.into_iter().map(|sample| sample.id).collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(1));
    assert!((2..9).any(|seed| order(seed) != order(1)));
}

#[test]
fn seeking_back_reverts_a_use() {
    let queue = open_queue(replay(ReplayOptions::default()));
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    writer.write(&batch_of("1", 1, &["a", "b"])).unwrap();
    reader.read(&now(1)).unwrap();
    let position = reader.position();
    reader.read(&now(1)).unwrap();
    reader.seek(&position).unwrap();
    assert_eq!(ids(&reader.read(&now(9)).unwrap()), ["b"]);
    drop(reader);
    assert_eq!(ids(&self::reader(&queue).read(&now(9)).unwrap()), ["b"]);
}

#[derive(Clone, Debug)]
enum Step {
    Write { key: u8, first: u8, count: u8, version: u64 },
    Read { count: usize, keep: bool, floor: u64 },
    Back,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..30_u8, 0..60_u8, 0..4_u8, 0..6_u64).prop_map(|(key, first, count, version)| {
            Step::Write { key, first, count, version }
        }),
        4 => (1..5_usize, any::<bool>(), 0..4_u64)
            .prop_map(|(count, keep, floor)| Step::Read { count, keep, floor }),
        1 => Just(Step::Back),
    ]
}

/// Naive model based on vectors.
#[derive(Default)]
struct Model {
    capacity: usize,
    ranked: bool,
    keys: BTreeSet<u8>,
    known: BTreeSet<u8>,
    /// Batches by arrival: rank and samples (id and version).
    lots: Vec<(u64, Vec<(u8, u64)>)>,
    open: bool,
    held: Vec<(u64, u8, u64)>,
}

impl Model {
    /// Returns the number of stored samples. `None`: no room.
    fn write(&mut self, key: u8, ids: &[u8], version: u64) -> Option<usize> {
        if self.keys.contains(&key) {
            return Some(0);
        }
        let fresh: Vec<u8> = ids.iter().copied().filter(|id| !self.known.contains(id)).collect();
        let full = self.lots.len() >= self.capacity && !fresh.is_empty();
        if full && !self.ranked {
            return None;
        }
        self.keys.insert(key);
        self.known.extend(&fresh);
        if fresh.is_empty() {
            return Some(0);
        }
        if full {
            let waiting = self.lots.iter().enumerate().skip(usize::from(self.open));
            let Some((at, lowest)) =
                waiting.min_by_key(|(_, lot)| lot.0).map(|(at, lot)| (at, lot.0))
            else {
                return Some(0);
            };
            if lowest > version {
                return Some(0);
            }
            self.lots.remove(at);
        }
        self.lots.push((version, fresh.iter().map(|id| (*id, version)).collect()));
        Some(fresh.len())
    }

    fn read(&mut self, count: usize, keep: bool, floor: u64) -> (Vec<u8>, usize) {
        if !keep {
            self.held.clear();
        }
        let (mut ids, mut stale) = (Vec::new(), 0);
        while ids.len() < count && !self.lots.is_empty() {
            if self.ranked && !self.open {
                let newest = self.lots.iter().map(|lot| lot.0).max();
                let at = self.lots.iter().position(|lot| Some(lot.0) == newest).unwrap();
                let lot = self.lots.remove(at);
                self.lots.insert(0, lot);
            }
            self.open = true;
            let (rank, (id, version)) = (self.lots[0].0, self.lots[0].1.remove(0));
            if self.lots[0].1.is_empty() {
                self.lots.remove(0);
                self.open = false;
            }
            if version < floor {
                stale += 1;
            } else {
                ids.push(id);
                self.held.push((rank, id, version));
            }
        }
        (ids, stale)
    }
}

fn run(steps: Vec<Step>, ranked: bool) {
    let capacity = 3;
    let replay = ranked.then(ReplayOptions::default);
    let queue = open_queue(QueueOptions { capacity, replay, ..queue_options() });
    let (mut writer, mut reader) = (writer(&queue), reader(&queue));
    let mut model = Model { capacity, ranked, ..Model::default() };
    let mut start = reader.position();
    for step in steps {
        match step {
            Step::Write { key, first, count, version } => {
                let numbers: Vec<u8> = (first..first + count).collect();
                let names: Vec<String> = numbers.iter().map(u8::to_string).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let written = writer.write(&batch_of(&key.to_string(), version, &names));
                let stored = written.ok().map(|written| written.stored);
                assert_eq!(stored, model.write(key, &numbers, version));
            }
            Step::Read { count, keep, floor } => {
                if !keep {
                    start = reader.position();
                }
                let request = ReadRequest { min_model_version: floor, keep, ..now(count) };
                let taken = reader.read(&request).unwrap();
                let numbers: Vec<u8> = ids(&taken).iter().map(|id| id.parse().unwrap()).collect();
                assert_eq!((numbers, taken.stale), model.read(count, keep, floor));
            }
            // FIFO only: seeking back in the priority queue reverts uses per batch.
            Step::Back if !ranked => {
                reader.seek(&start).unwrap();
                let held = std::mem::take(&mut model.held);
                for (rank, id, version) in held.into_iter().rev() {
                    model.lots.insert(0, (rank, vec![(id, version)]));
                }
                // Single batches would take more capacity: read them at once.
                let count = queue.usage().unread;
                let taken = reader.read(&now(count)).unwrap();
                let numbers: Vec<u8> = ids(&taken).iter().map(|id| id.parse().unwrap()).collect();
                assert_eq!(numbers, model.read(count, false, 0).0);
                start = reader.position();
                reader.read(&now(0)).unwrap();
                model.held.clear();
            }
            Step::Back => {}
        }
        assert_eq!(queue.usage().held, model.held.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_fifo_queue_matches_its_model(steps in prop::collection::vec(step(), 0..60)) {
        run(steps, false);
    }

    #[test]
    fn the_priority_queue_matches_its_model(steps in prop::collection::vec(step(), 0..60)) {
        run(steps, true);
    }
}
