//! The job that is killed: batches of every kind, several in flight, finalized in order.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rollway_core::metrics::Metrics;
use rollway_core::{BatchType, CoreConfig, FailureKind, Refusal};
use rollway_data::buffer::{Buffer, ExperienceWriter, PostgresBuffer, SqliteBuffer, sql};
use rollway_data::{Sample, WriteBatch};
use rollway_engine::{
    BatchDelivery, DeliveryResult, Error, LocalRunners, RestoreReport, RolloutCoordinator,
    RunContext, RunFailure, RunOutcome, RunOutput, Sink, Task, WorkflowRegistry,
};
use rollway_experience::{Eid, Experience, ExperienceFields, IdPart, deserialize_many, serialize};
use rollway_ledger::LedgerOptions;

pub(crate) const BATCHES: i64 = 12;

const TASKS: u32 = 6;
const REPEAT: u32 = 2;

/// Runs per batch.
pub(crate) const RUNS: u64 = (TASKS * REPEAT) as u64;

/// Minimum number of runs of a truncated batch.
pub(crate) const ENOUGH: u64 = (4 * REPEAT) as u64;

/// Batches in flight.
const WINDOW: i64 = 3;

/// Handling of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Finalized when complete.
    Whole,
    /// Finalized when four of its six tasks are done; one never ends.
    Enough,
    /// Aborted, finished results kept.
    Abort,
    Eval,
}

impl Plan {
    pub(crate) fn of(batch: i64) -> Self {
        match batch % 4 {
            0 => Self::Eval,
            2 => Self::Enough,
            3 if batch == 3 => Self::Abort,
            _ => Self::Whole,
        }
    }
}

/// Opens the buffer: an address, with a table behind `#` for PostgreSQL.
pub(crate) fn buffer(address: &str) -> Arc<dyn Buffer> {
    match address.split_once('#') {
        Some((address, table)) => {
            let options = sql::SqlOptions { table: table.into(), ..sql::SqlOptions::default() };
            Arc::new(PostgresBuffer::open(address, options).unwrap())
        }
        None => Arc::new(SqliteBuffer::open(address, sql::SqlOptions::default()).unwrap()),
    }
}

/// Writes deliveries as write batches.
struct BufferSink(Arc<Mutex<Box<dyn ExperienceWriter>>>);

impl Sink for BufferSink {
    fn deliver(&self, delivery: BatchDelivery) -> BoxFuture<'_, DeliveryResult> {
        let writer = Arc::clone(&self.0);
        Box::pin(async move {
            let write = move || {
                let key = format!("{}#{}", delivery.batch, delivery.key).into();
                let payloads = delivery.results.into_iter().flat_map(|result| result.payloads);
                let experiences = payloads.flat_map(|payload| deserialize_many(payload).unwrap());
                let samples = experiences.map(|one| Sample::new(&one).unwrap()).collect();
                let written = writer.lock().unwrap().write(&WriteBatch { key, samples });
                written.map(|_| Metrics::new()).map_err(|error| error.to_string())
            };
            tokio::task::spawn_blocking(write).await.unwrap()
        })
    }

    fn process(&self, _: Vec<Bytes>) -> BoxFuture<'_, DeliveryResult> {
        Box::pin(std::future::ready(Ok(Metrics::new())))
    }
}

/// Takes a while, fails now and then but never twice, and gives its experience a new suffix in
/// every execution.
async fn work(context: RunContext) -> RunOutcome {
    static EXECUTIONS: AtomicU32 = AtomicU32::new(0);
    static EXECUTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let execution = EXECUTIONS.fetch_add(1, Ordering::Relaxed);
    if &context.task.body[..] == b"never" {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(Duration::from_millis(u64::from(execution * 7 % 5))).await;
    let run = format!("{}/{}/{}", context.batch, context.task_id, context.run);
    let again = !EXECUTED.lock().unwrap().insert(run);
    if execution % 9 == 4 && !again {
        return Err(RunFailure::new(FailureKind::Workflow, "not this time"));
    }
    let eid = Eid {
        batch: IdPart::from(&context.batch),
        task: IdPart::Number(i64::from(context.task_id.0)),
        run: u64::from(context.run.0),
        step: 0,
        suffix: format!("{}-{execution}", std::process::id()),
    };
    let tokens = vec![1, 2, 3].into();
    let fields = ExperienceFields { eid, tokens, reward: Some(1.0), ..ExperienceFields::default() };
    let payload = serialize(&Experience::new(fields).unwrap()).unwrap();
    Ok(RunOutput { payload: Some(payload), metrics: [("reward", 1.0)].into_iter().collect() })
}

fn tasks(plan: Plan) -> Vec<Task> {
    let body = |task: u32| if plan == Plan::Enough && task == 5 { "never" } else { "work" };
    (0..TASKS).map(|task| Task::new("work", body(task)).repeat(REPEAT)).collect()
}

/// Runs or resumes the job. `known`: batches whose submission was acknowledged.
pub(crate) fn run(folder: &Path, address: &str, known: Vec<i64>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Buffers block: opened outside of the runtime.
    let writer = buffer(address).writer("job").unwrap();
    let sink = Arc::new(BufferSink(Arc::new(Mutex::new(writer))));
    let sink = &sink;
    runtime.block_on(async {
        let mut config = CoreConfig { runners: 4, ..CoreConfig::default() };
        config.max_timeout = Duration::from_secs(60);
        config.over_rollout.wait_after_min = Duration::ZERO;
        let workers = LocalRunners::new(WorkflowRegistry::default().with("work", work));
        let options = LedgerOptions::new("survive");
        let ledger = folder.join("ledger");
        let opened =
            RolloutCoordinator::with_ledger(config, workers, Some(sink.clone()), &ledger, options)
                .await;
        let (coordinator, restored) = opened.unwrap();
        for batch in known {
            let state = coordinator.batch_state(batch).await.unwrap();
            assert!(state.is_some(), "batch {batch} was acknowledged and is forgotten");
        }
        coordinator.prepare().await.unwrap();
        let version = restored.version + 1;
        coordinator.note_version(version).await.unwrap();
        coordinator.note_version(version - 1).await.unwrap_err();
        for batch in 1..=BATCHES + WINDOW {
            if batch <= BATCHES {
                submit(&coordinator, batch).await;
            }
            if batch > WINDOW {
                end(&coordinator, &restored, batch - WINDOW).await;
            }
        }
        let counters = coordinator.counters().await.unwrap();
        assert!(counters.balanced(), "{counters:?}");
        print(format_args!("job done"));
    });
}

async fn submit(coordinator: &RolloutCoordinator, batch: i64) {
    if coordinator.batch_state(batch).await.unwrap().is_some() {
        return;
    }
    let plan = Plan::of(batch);
    let kind = if plan == Plan::Eval { BatchType::Eval } else { BatchType::Train };
    let enough = (plan == Plan::Enough).then_some(4);
    match coordinator.submit_batch(batch, tasks(plan), kind, enough).await {
        Ok(()) => print(format_args!("batch {batch} submitted")),
        Err(Error::Refused(Refusal::AlreadyActive { .. })) => {}
        Err(error) => panic!("{error}"),
    }
}

async fn end(coordinator: &RolloutCoordinator, restored: &RestoreReport, batch: i64) {
    let result = match Plan::of(batch) {
        Plan::Whole | Plan::Enough => coordinator.finalize_train_batch(batch, None).await,
        Plan::Eval => coordinator.finalize_eval_batch(batch, None).await,
        Plan::Abort => coordinator.abort_batch(batch, "as planned", true).await.map(|aborted| {
            let earlier = || restored.results.iter().find(|result| result.batch == batch.into());
            aborted.or_else(|| earlier().cloned()).expect("it was aborted in an earlier life")
        }),
    };
    let result = result.unwrap();
    assert!(result.runs.balanced(), "{result:?}");
    assert_eq!(result.uncertain, 0);
    print(format_args!("batch {batch} delivered {}", result.delivered));
}

fn print(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}
