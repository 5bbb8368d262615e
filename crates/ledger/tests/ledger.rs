//! The ledger: opening returns exactly what was appended.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ledger_model;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bytes::Bytes;
use ledger_model::{Model, Step, apply, options, result, steps, submitted, task};
use proptest::prelude::*;
use rollway_core::{BatchId, BatchKey, BatchState, RunEnd, RunId, RunOutput, TaskId};
use rollway_ledger::{Ledger, LedgerEntry, LedgerError, LedgerOptions};

fn check(dir: &Path, model: &Model) -> Ledger {
    let (ledger, recovered) = Ledger::open(dir, options()).unwrap();
    model.check(&recovered);
    ledger
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let entries = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    entries.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

fn write_files(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    fs::create_dir(dir).unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn compaction_preserves_the_content(steps in steps(60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        let mut ledger = check(dir.path(), &model);
        for step in &steps {
            match step {
                Step::Compact => ledger.compact().unwrap(),
                Step::Reopen => {
                    drop(ledger);
                    ledger = check(dir.path(), &model);
                }
                step => apply(&ledger, &mut model, step),
            }
        }
        ledger.compact().unwrap();
        let state = 13 + 1 + 3 * 10;
        prop_assert!(ledger.bytes() <= ledger.live_bytes() + state, "only what matters is left");
        drop(ledger);
        drop(check(dir.path(), &model));
    }

    /// A process dies somewhere in the middle of compaction.
    #[test]
    fn a_crash_at_any_step_of_compaction_changes_nothing(
        steps in steps(30),
        at in any::<prop::sample::Index>(),
        left in any::<prop::sample::Index>(),
    ) {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("ledger");
        let mut model = Model::default();
        let ledger = check(&dir, &model);
        // Ensures that there is something to compact.
        apply(&ledger, &mut model, &Step::Version(1));
        steps.iter().for_each(|step| apply(&ledger, &mut model, step));
        ledger.sync().unwrap();
        let before = files(&dir);
        ledger.compact().unwrap();
        drop(ledger);
        let after = files(&dir);
        let old = |name: &String| name.ends_with(".log") && !after.contains_key(name);

        // Some copies have been written, up to any byte.
        let new: Vec<_> = after.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
        prop_assert!(!new.is_empty());
        let header = before.values().find(|bytes| bytes.starts_with(b"ROLLWLOG")).unwrap()[12];
        let bodies = new.iter().map(|(_, bytes)| bytes.len() - usize::from(header)).sum::<usize>();
        let mut cut = at.index(bodies + 1);
        let mut crashed = before.clone();
        for (name, bytes) in new {
            let length = (bytes.len() - usize::from(header)).min(cut);
            crashed.insert(name.clone(), bytes[..usize::from(header) + length].to_vec());
            if length < bytes.len() - usize::from(header) {
                break;
            }
            cut -= length;
        }
        write_files(&home.path().join("copying"), &crashed);
        drop(check(&home.path().join("copying"), &model));

        // All copies have been written, and some of the old segments have been removed.
        let gone = left.index(before.keys().filter(|name| old(name)).count() + 1);
        let mut crashed = after.clone();
        let kept = before.iter().filter(|(name, _)| old(name)).skip(gone);
        crashed.extend(kept.map(|(name, bytes)| (name.clone(), bytes.clone())));
        write_files(&home.path().join("removing"), &crashed);
        drop(check(&home.path().join("removing"), &model));
    }
}

/// Automatic compaction beside appends.
#[test]
fn a_long_lived_ledger_stays_small() {
    let dir = tempfile::tempdir().unwrap();
    let few = LedgerOptions { compact_bytes_min: 20_000, segment_bytes: 10_000, ..options() };
    let (ledger, _) = Ledger::open(dir.path(), few.clone()).unwrap();
    let payload = Bytes::from(vec![1; 1000]);
    let end = RunEnd::Succeeded(RunOutput {
        payload: Some(payload),
        metrics: [("a", 1.0)].into_iter().collect(),
    });
    let long = BatchId::from("long");
    let tasks = vec![task(300, 1)];
    ledger.append(submitted(BatchKey(0), &long, &tasks)).unwrap();
    for number in 0..300 {
        let (key, batch) = (u64::from(number) + 1, BatchId::from(i64::from(number)));
        ledger.append(submitted(BatchKey(key), &batch, &tasks)).unwrap();
        let ended = |key, run| LedgerEntry::RunEnded {
            key: BatchKey(key),
            task: TaskId(0),
            run: RunId(run),
            end: &end,
        };
        ledger.append(ended(key, 0)).unwrap();
        if number % 30 == 0 {
            ledger.append(ended(0, number)).unwrap();
        }
        ledger.append(LedgerEntry::Version(u64::from(number))).unwrap();
        let done = result(key, &batch, BatchState::Finalized, 3);
        ledger.append(LedgerEntry::BatchEnded(&done)).unwrap();
        ledger.sync().unwrap();
    }
    let live = ledger.live_bytes();
    drop(ledger);
    let (ledger, recovered) = Ledger::open(dir.path(), few).unwrap();
    assert_eq!(ledger.live_bytes(), live, "what is counted is what is there");
    assert_eq!(recovered.batches.len(), 1);
    assert_eq!(recovered.batches[0].ended.len(), 10);
    assert_eq!(recovered.version, 299);
    let names: Vec<_> = recovered.results.iter().map(|(batch, _)| batch.clone()).collect();
    assert_eq!(names, [297, 298, 299].map(BatchId::from));
    // Garbage is removed in the background, as fast as the disk allows: append until it is gone.
    for version in 300..10_000 {
        if ledger.bytes() < 150_000 {
            return;
        }
        ledger.append(LedgerEntry::Version(version)).unwrap();
        ledger.sync().unwrap();
    }
    panic!("{} bytes are left", ledger.bytes());
}

#[test]
fn a_full_ledger_refuses_batches_and_takes_the_ends_of_runs() {
    let dir = tempfile::tempdir().unwrap();
    let small = LedgerOptions { bytes_max: 1000, ..options() };
    let (ledger, _) = Ledger::open(dir.path(), small).unwrap();
    let (a, b, key) = (BatchId::from("a"), BatchId::from("b"), BatchKey(1));
    ledger.admits(&a, 600).unwrap();
    let error = ledger.admits(&a, 2 << 30).unwrap_err();
    assert!(matches!(error, LedgerError::TooLarge { .. }), "{error}");
    ledger.append(submitted(key, &a, &[task(1, 600)])).unwrap();
    let error = ledger.admits(&b, 600).unwrap_err();
    assert!(matches!(error, LedgerError::Full { .. }), "{error}");
    assert!(error.to_string().contains("no room for batch b of 6"), "{error}");
    let run = RunId(0);
    let payload = Some(Bytes::from(vec![0; 100_000]));
    let end = RunEnd::Succeeded(RunOutput { payload, metrics: Default::default() });
    ledger.append(LedgerEntry::RunEnded { key, task: TaskId(0), run, end: &end }).unwrap();
    ledger.append(LedgerEntry::BatchEnded(&result(1, &a, BatchState::Aborted, 0))).unwrap();
    ledger.admits(&b, 600).unwrap();
}

#[test]
fn invalid_records_are_refused_without_effect() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = Ledger::open(dir.path(), options()).unwrap();
    let (batch, tasks) = (BatchId::from(1), [task(2, 1)]);
    let key = BatchKey(7);
    let submitted = submitted(key, &batch, &tasks);
    let end = RunEnd::Cancelled(rollway_core::CancelReason::NoRoom);
    let ended =
        |task, run| LedgerEntry::RunEnded { key, task: TaskId(task), run: RunId(run), end: &end };
    let done = result(7, &batch, BatchState::Finalized, 1);
    assert!(matches!(ledger.append(ended(0, 0)), Err(LedgerError::NotActive { .. })));
    assert!(matches!(
        ledger.append(LedgerEntry::BatchEnded(&done)),
        Err(LedgerError::NotActive { .. })
    ));
    ledger.append(submitted).unwrap();
    assert!(matches!(ledger.append(submitted), Err(LedgerError::AlreadyActive { .. })));
    ledger.append(ended(0, 1)).unwrap();
    assert!(matches!(ledger.append(ended(0, 1)), Err(LedgerError::EndedTwice { .. })));
    assert!(matches!(ledger.append(ended(0, 2)), Err(LedgerError::NoSuchRun { .. })));
    assert!(matches!(ledger.append(ended(1, 0)), Err(LedgerError::NoSuchRun { .. })));
    let running = result(7, &batch, BatchState::Running, 1);
    assert!(matches!(
        ledger.append(LedgerEntry::BatchEnded(&running)),
        Err(LedgerError::NotEnded { .. })
    ));
    ledger.append(LedgerEntry::Version(5)).unwrap();
    ledger.append(LedgerEntry::Version(5)).unwrap();
    let error = ledger.append(LedgerEntry::Version(4)).unwrap_err().to_string();
    assert_eq!(error, "version 4 of the model is older than 5, which the ledger has recorded");
    drop(ledger);
    let (_, recovered) = Ledger::open(dir.path(), options()).unwrap();
    assert_eq!(recovered.version, 5);
    assert_eq!(recovered.batches[0].ended, [(TaskId(0), RunId(1), end)]);
}

#[test]
fn the_ledger_of_another_job_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    drop(Ledger::open(dir.path(), options()).unwrap());
    let error = Ledger::open(dir.path(), LedgerOptions::new("other")).unwrap_err().to_string();
    assert!(error.contains("has the identity \"job\", not \"other\""), "{error}");
}

#[test]
fn a_record_of_a_newer_program_is_named() {
    use rollway_ledger::log::{self, FramePart, SegmentLog};
    let dir = tempfile::tempdir().unwrap();
    let log = log::LogOptions::new("ledger", "job");
    let (log, _) = SegmentLog::open(dir.path(), log, &mut |_, _| {}).unwrap();
    log.append(&[FramePart::Copy(&[99, 1])]).unwrap();
    drop(log);
    let error = Ledger::open(dir.path(), options()).unwrap_err().to_string();
    assert!(error.contains("at offset 0: the unknown kind of record 99"), "{error}");
}
