//! The ledger's place in the engine. What the core wants recorded is written together with the
//! bytes that it knows only by number, and what may not leave before that is safe waits here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rollway_config::Config;
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchState, BatchType, LedgerRecord as Fact, Payload,
    PayloadId, RunEnd, RunOutput, TaskSpec,
};
use rollway_ledger::log::TornTail;
use rollway_ledger::{
    BatchMark, Ledger, LedgerEntry, LedgerError, LedgerOptions, RecoveredBatch, RecoveredLedger,
    TaskEntry,
};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::task::{Task, WorkflowDefinition};

/// What a coordinator took up again when it was started on its ledger.
#[derive(Clone, Debug, Default)]
pub struct RestoreReport {
    /// The batches that had not ended, in the order of submission.
    pub batches: Vec<RestoredBatch>,
    /// The results of the last batches that had, in the order of their ends.
    pub results: Vec<Arc<BatchResult>>,
    /// The newest version of the model that was noted.
    pub version: u64,
    /// What a crash had left half-written; nobody was ever told that it was safe.
    pub torn: Option<TornTail>,
}

/// A batch that goes on where it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredBatch {
    pub batch: BatchId,
    /// Whether it is trained on.
    pub kind: BatchType,
    pub tasks: usize,
    /// How many of its runs had ended and are not run again.
    pub ended_runs: usize,
}

/// Returns the folder and the options of the ledger of a job. `None`: the job has no ledger.
pub fn ledger_options(config: &Config) -> Option<(PathBuf, LedgerOptions)> {
    let options =
        LedgerOptions { bytes_max: config.ledger.max_bytes, ..LedgerOptions::new(config.job()) };
    Some((config.ledger_dir()?, options))
}

/// A batch from the ledger, as the driver takes it up.
#[derive(Debug)]
pub(crate) struct RestoredCoreBatch {
    pub(crate) batch: RecoveredBatch,
    pub(crate) tasks: Vec<Arc<Task>>,
}

/// A ledger in use.
#[derive(Debug)]
pub(crate) struct LedgerBridge {
    ledger: Ledger,
    /// A stop cancels and aborts what is unfinished in memory; the ledger keeps it for the next
    /// start.
    stopping: bool,
    /// Why a record is missing. From then on nothing is called safe.
    broken: OnceLock<Arc<str>>,
}

impl LedgerBridge {
    /// Opens a ledger. Blocks.
    pub(crate) fn open(
        dir: &Path,
        options: LedgerOptions,
    ) -> Result<(Self, RecoveredLedger), LedgerError> {
        let (ledger, recovered) = Ledger::open(dir, options)?;
        Ok((Self { ledger, stopping: false, broken: OnceLock::new() }, recovered))
    }

    /// Tells whether there is room for a batch.
    pub(crate) fn admits(&self, batch: &BatchId, tasks: &[Arc<Task>]) -> Result<(), LedgerError> {
        // Whatever else a task takes is less than this.
        const AROUND: usize = 64;
        let own = |task: &Arc<Task>| task.body.len() + task.workflow.len() + AROUND;
        let mut bytes: usize = tasks.iter().map(own).sum();
        let mut last = None;
        for definition in tasks.iter().filter_map(|task| task.definition.as_ref()) {
            if last.replace(Arc::as_ptr(definition)) != Some(Arc::as_ptr(definition)) {
                bytes += definition.body.len() + AROUND;
            }
        }
        self.ledger.admits(batch, bytes as u64)
    }

    /// From now on, what is given up is given up for this life of the process only.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Writes that a batch was submitted.
    pub(crate) fn submitted(&self, fact: &Fact, tasks: &[Arc<Task>]) {
        let Fact::Submitted { batch, id, kind, min_wait_num, .. } = fact else { return };
        let tasks = task_records(tasks);
        self.append(LedgerEntry::Submitted {
            key: *batch,
            batch: id,
            kind: *kind,
            min_wait_num: *min_wait_num,
            tasks: &tasks,
        });
    }

    /// Writes what happened to a batch later on.
    pub(crate) fn append_record(&self, fact: Fact, payloads: &HashMap<PayloadId, Bytes>) {
        let key = fact.batch();
        match fact {
            // It comes with its tasks: see `submitted`.
            Fact::Submitted { .. } => {}
            Fact::RunEnded { task, run, ending, .. } => {
                if self.stopping && matches!(ending, RunEnd::Cancelled(_)) {
                    return;
                }
                let end = ending.map(|RunOutput { payload, metrics }| {
                    let bytes = |payload: Payload| payloads.get(&payload.id).cloned();
                    RunOutput { payload: payload.and_then(bytes), metrics }
                });
                self.append(LedgerEntry::RunEnded { key, task, run, end: &end });
            }
            Fact::Truncated { .. } | Fact::Aborting { .. } if self.stopping => {}
            Fact::Truncated { reason, keep, .. } => {
                self.note(key, &BatchMark::Cut { reason, keep })
            }
            Fact::Aborting { reason, .. } => self.note(key, &BatchMark::GivenUp(reason)),
            Fact::DeliveryStarted { .. } => self.note(key, &BatchMark::Offered),
            Fact::Closed(result) if self.stopping && result.state == BatchState::Aborted => {}
            Fact::Closed(result) => self.append(LedgerEntry::BatchEnded(&result)),
        }
    }

    /// Writes the version of the model, and answers when that is safe.
    pub(crate) fn version(&self, version: u64, reply: oneshot::Sender<crate::Result<()>>) {
        if let Err(error) = self.ledger.append(LedgerEntry::Version(version)) {
            let _ = reply.send(Err(Error::Ledger(error.to_string())));
            return;
        }
        self.when_durable(move |safe| {
            let _ = reply.send(safe.map_err(|error| Error::Ledger(error.to_string())));
        });
    }

    /// Closes the ledger, so that somebody else can open it, and says so.
    pub(crate) fn close(self, then: impl FnOnce(Result<(), Arc<str>>) + Send + 'static) {
        tokio::task::spawn_blocking(move || {
            let safe = self.ledger.sync().map_err(|error| error.to_string().into());
            drop(self);
            then(safe);
        });
    }

    /// Calls `then` once everything that was written before is safe, or with what is in the way:
    /// at once, or from another thread, which it must not keep waiting.
    pub(crate) fn when_durable(&self, then: impl FnOnce(Result<(), Arc<str>>) + Send + 'static) {
        if let Some(message) = self.broken.get() {
            return then(Err(Arc::clone(message)));
        }
        if self.ledger.unsynced_bytes() == 0 {
            return then(Ok(()));
        }
        self.ledger.commit(Box::new(move |done| {
            then(done.map_err(|error| error.to_string().into()));
        }));
    }

    fn note(&self, key: BatchKey, note: &BatchMark) {
        self.append(LedgerEntry::Noted { key, note });
    }

    fn append(&self, record: LedgerEntry<'_>) {
        // The core does not contradict itself, and batches that are too large are not let in.
        if let Err(error) = self.ledger.append(record) {
            let message = format!("a record is missing, start again: {error}");
            tracing::error!(message, "the ledger does not take a record");
            let _ = self.broken.set(message.into());
        }
    }
}

impl RestoredCoreBatch {
    pub(crate) fn new(mut batch: RecoveredBatch) -> Result<Self, String> {
        let records = std::mem::take(&mut batch.tasks);
        let tasks = tasks(&records, batch.kind)
            .ok_or_else(|| format!("the workflows of batch {} are not readable", batch.batch))?;
        Ok(Self { batch, tasks })
    }

    pub(crate) fn summary(&self) -> RestoredBatch {
        RestoredBatch {
            batch: self.batch.batch.clone(),
            kind: self.batch.kind,
            tasks: self.tasks.len(),
            ended_runs: self.batch.ended.len(),
        }
    }

    /// Returns what the core has to be told, in order. `keep` puts the bytes of a payload aside and
    /// returns their number.
    pub(crate) fn restore_inputs(
        self,
        tasks: Vec<TaskSpec>,
        mut keep: impl FnMut(Bytes) -> Payload,
    ) -> impl Iterator<Item = Fact> {
        let RecoveredBatch { key, batch: id, kind, min_wait_num, ended, notes, .. } = self.batch;
        let submitted = Fact::Submitted { batch: key, id, kind, min_wait_num, tasks };
        let ended = ended.into_iter().map(move |(task, run, end)| {
            let ending = end.map(|output| output.map_payload(&mut keep));
            Fact::RunEnded { batch: key, task, run, ending }
        });
        let notes = notes.into_iter().map(move |note| match note {
            BatchMark::Cut { reason, keep } => Fact::Truncated { batch: key, reason, keep },
            BatchMark::Offered => Fact::DeliveryStarted { batch: key },
            BatchMark::GivenUp(reason) => Fact::Aborting { batch: key, reason },
        });
        [submitted].into_iter().chain(ended).chain(notes)
    }
}

/// Returns tasks as the ledger keeps them; a workflow that neighbours have in common is kept once.
fn task_records(tasks: &[Arc<Task>]) -> Vec<TaskEntry> {
    let mut last: Option<(&WorkflowDefinition, Bytes)> = None;
    let mut records = Vec::with_capacity(tasks.len());
    for task in tasks {
        let common = task.definition.as_deref().map(|definition| match &last {
            Some((known, bytes)) if *known == definition => bytes.clone(),
            _ => {
                let bytes = pack(definition);
                last = Some((definition, bytes.clone()));
                bytes
            }
        });
        records.push(TaskEntry {
            workflow: Arc::clone(&task.workflow),
            common,
            repeat_times: task.repeat_times,
            bytes: task.body.clone(),
        });
    }
    records
}

/// Returns the tasks of a batch; none: a workflow cannot be read.
fn tasks(records: &[TaskEntry], kind: BatchType) -> Option<Vec<Arc<Task>>> {
    let mut last: Option<(&Bytes, Arc<WorkflowDefinition>)> = None;
    let mut tasks = Vec::with_capacity(records.len());
    for record in records {
        let definition = match (&record.common, &last) {
            (None, _) => None,
            (Some(bytes), Some((known, definition))) if *known == bytes => {
                Some(Arc::clone(definition))
            }
            (Some(bytes), _) => {
                let definition = Arc::new(unpack(bytes.clone())?);
                last = Some((bytes, Arc::clone(&definition)));
                Some(definition)
            }
        };
        tasks.push(Arc::new(Task {
            workflow: Arc::clone(&record.workflow),
            definition,
            repeat_times: record.repeat_times,
            is_eval: kind == BatchType::Eval,
            body: record.bytes.clone(),
        }));
    }
    Some(tasks)
}

/// Returns a workflow as bytes: two texts behind their lengths, and the body.
fn pack(definition: &WorkflowDefinition) -> Bytes {
    let mut bytes = BytesMut::new();
    for text in [&definition.encoding, &definition.task_encoding] {
        bytes.put_u32_le(text.len() as u32);
        bytes.put_slice(text.as_bytes());
    }
    bytes.put_slice(&definition.body);
    bytes.freeze()
}

fn unpack(mut bytes: Bytes) -> Option<WorkflowDefinition> {
    let mut text = || {
        let length = bytes.try_get_u32_le().ok()? as usize;
        let text = (length <= bytes.len()).then(|| bytes.split_to(length))?;
        std::str::from_utf8(&text).ok().map(Arc::<str>::from)
    };
    let (encoding, task_encoding) = (text()?, text()?);
    Some(WorkflowDefinition { encoding, task_encoding, body: bytes })
}

#[cfg(test)]
mod tests {
    use rollway_core::{FailureKind, RunFailure, RunId, TaskId};

    use super::*;

    #[test]
    fn nothing_is_safe_once_a_record_is_missing() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let (durable, _) = LedgerBridge::open(folder.path(), LedgerOptions::new("job"))?;
        durable.when_durable(|safe| assert_eq!(safe, Ok(())));
        let ending =
            RunEnd::Failed(RunFailure { kind: FailureKind::Workflow, message: "x".into() });
        let (batch, task, run) = (BatchKey(7), TaskId(0), RunId(0));
        durable.append_record(Fact::RunEnded { batch, task, run, ending }, &HashMap::new());
        let (send, safe) = std::sync::mpsc::channel();
        durable.when_durable(move |done| send.send(done).unwrap_or_default());
        assert!(safe.recv()?.is_err_and(|message| message.contains("a record is missing")));
        Ok(())
    }
}
