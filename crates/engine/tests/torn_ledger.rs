//! A ledger whose end is missing, as after a crash or a full disk.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rollway_core::BatchType;
use rollway_engine::{
    LocalRunners, RestoreReport, RolloutCoordinator, RunContext, RunFailure, RunOutput, Task,
    WorkflowRegistry,
};
use rollway_ledger::LedgerOptions;

use crate::common::{SECOND, local_config};

async fn work(_: RunContext) -> Result<RunOutput, RunFailure> {
    Ok(RunOutput::default())
}

async fn open(folder: &Path) -> (RolloutCoordinator, RestoreReport) {
    let runners = LocalRunners::new(WorkflowRegistry::default().with("work", work));
    let options = LedgerOptions::new("torn");
    let opened =
        RolloutCoordinator::with_ledger(local_config(), runners, None, folder, options).await;
    opened.unwrap()
}

fn newest_segment(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let segments = entries.filter(|path| fs::read(path).is_ok_and(|bytes| bytes.len() > 100));
    segments.max().unwrap()
}

#[tokio::test]
async fn the_missing_end_of_a_ledger_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (coordinator, restored) = open(folder.path()).await;
    assert_eq!(restored.torn, None);
    coordinator.prepare().await.unwrap();
    let tasks = vec![Task::new("work", "x").eval()];
    coordinator.submit_batch(1, tasks, BatchType::Eval, None).await.unwrap();
    coordinator.shutdown(SECOND).await.unwrap();
    drop(coordinator);
    let segment = newest_segment(folder.path());
    let file = File::options().write(true).open(&segment).unwrap();
    file.set_len(file.metadata().unwrap().len() - 3).unwrap();
    // The missing record was acknowledged.
    let runners = LocalRunners::new(WorkflowRegistry::default().with("work", work));
    let options = LedgerOptions::new("torn");
    let refused =
        RolloutCoordinator::with_ledger(local_config(), runners, None, folder.path(), options);
    let error = rollway_base::error_chain(&refused.await.unwrap_err());
    assert!(error.contains("was acknowledged"), "{error}");
    fs::remove_file(folder.path().join("end")).unwrap();
    let (_, restored) = open(folder.path()).await;
    let torn = restored.torn.expect("the record that is cut off");
    assert_eq!(torn.path, segment);
    assert!(torn.bytes > 0);
}
