//! Memory of a long job: what was delivered is released.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollway_config::Config;
use rollway_core::BatchType;
use rollway_data::buffer::ReadRequest;
use rollway_data::pipeline::OperatorRegistry;
use rollway_engine::{
    BufferTarget, CollectOptions, LocalRunners, PipelineSink, RolloutCoordinator, RunContext,
    RunFailure, RunOutput, Scheduler, WithOutputCheck, WorkflowRegistry,
};
use rollway_experience::{Eid, Experience, ExperienceFields, serialize};
use rollway_ledger::LedgerOptions;
use serde_json::json;
use tokio::sync::Mutex;

use crate::common::{SECOND, local_config, tasks};

/// Runs of a batch, of one task.
const RUNS: u32 = 25;

const PAYLOAD_BYTES: usize = 50_000;

/// Maximum growth between the two looks: a small part of what was delivered in between, 125 MB or
/// more.
const MAX_GROWTH: u64 = 10 << 20;

/// The tests measure the memory of their process.
static ALONE: Mutex<()> = Mutex::const_new(());

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Memory after the first third of the batches, when caches and the allocator have their size,
/// compared at the end.
struct Plateau {
    batches: i64,
    resident: u64,
}

impl Plateau {
    fn new(batches: i64) -> Self {
        Self { batches, resident: 0 }
    }

    fn look(&mut self, batch: i64) {
        if batch == self.batches / 3 {
            self.resident = resident_bytes();
        }
        if batch == self.batches {
            let grown = resident_bytes().saturating_sub(self.resident);
            assert!(grown < MAX_GROWTH, "{grown} bytes since a third of {batch} batches");
        }
    }
}

async fn bytes(context: RunContext) -> Result<RunOutput, RunFailure> {
    let payload = Some(Bytes::from(vec![context.run.0 as u8; PAYLOAD_BYTES]));
    Ok(RunOutput { payload, ..RunOutput::default() })
}

async fn tokens(context: RunContext) -> Result<RunOutput, RunFailure> {
    let first = context.run.0 as i32;
    let fields = ExperienceFields {
        eid: Eid { suffix: "00000a".into(), ..Eid::default() },
        tokens: (first..).take(PAYLOAD_BYTES / size_of::<i32>()).collect(),
        prompt_length: 1,
        reward: Some(1.0),
        ..ExperienceFields::default()
    };
    let payload = Some(serialize(&Experience::new(fields)?)?);
    Ok(RunOutput { payload, ..RunOutput::default() })
}

#[tokio::test]
async fn collected_payloads_are_released() {
    let _alone = ALONE.lock().await;
    let runners = LocalRunners::new(WorkflowRegistry::default().with("bytes", bytes));
    let scheduler = Scheduler::new(local_config(), runners);
    scheduler.start().await.unwrap();
    let mut plateau = Plateau::new(300);
    for batch in 1..=300 {
        scheduler.schedule(tasks("bytes", 1, RUNS), batch).await.unwrap();
        let got = scheduler.get_payload_results(batch, CollectOptions::default()).await;
        assert_eq!(got.unwrap().payloads.len(), RUNS as usize);
        plateau.look(batch);
    }
}

#[tokio::test]
async fn delivered_experiences_are_released() {
    let _alone = ALONE.lock().await;
    // In memory if possible, as of the system, not of this process: every batch is synced.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let keys = json!({
        "checkpoint_root_dir": folder.path(),
        "buffer": { "trainer_input": { "experience_buffer": { "storage_type": "queue" } } },
        "data_processor": { "experience_pipeline": { "save_input": false } },
    });
    let config = Config::from_value(&keys).unwrap();
    let sink = Arc::new(PipelineSink::new(&config, &OperatorRegistry::built_in()).unwrap());
    let runners = LocalRunners::new(WorkflowRegistry::default().with("tokens", tokens));
    let runners = WithOutputCheck::new(runners);
    let ledger = config.job_dir().join("ledger");
    let options = LedgerOptions::new("soak");
    let given = Some(Arc::clone(&sink) as _);
    let opened =
        RolloutCoordinator::with_ledger(local_config(), runners, given, &ledger, options).await;
    let (coordinator, _) = opened.unwrap();
    coordinator.prepare().await.unwrap();
    sink.prepare().await.unwrap();
    let buffer = BufferTarget::of_experiences(&config).unwrap().open().unwrap();
    let mut reader = buffer.reader("trainer").unwrap();
    let request = ReadRequest {
        count: RUNS as usize,
        timeout: Duration::ZERO,
        min_model_version: 0,
        keep: false,
    };
    let mut plateau = Plateau::new(150);
    for batch in 1..=150 {
        let tasks = tasks("tokens", 1, RUNS);
        coordinator.submit_batch(batch, tasks, BatchType::Train, None).await.unwrap();
        coordinator.finalize_train_batch(batch, None).await.unwrap();
        // Acknowledges those of the batch before.
        assert_eq!(reader.read(&request).unwrap().samples.len(), RUNS as usize);
        plateau.look(batch);
    }
    coordinator.shutdown(SECOND).await.unwrap();
    sink.close().await.unwrap();
}
