//! Writes the core's records, with the bytes that it knows by number, to the ledger, and delays
//! actions until the records before them are synced.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rollway_config::Config;
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchState, BatchType, LedgerRecord, Payload, PayloadId,
    RunEnd, RunOutput, TaskSpec,
};
use rollway_ledger::log::TornTail;
use rollway_ledger::{
    BatchMark, Ledger, LedgerEntry, LedgerError, LedgerOptions, RecoveredBatch, RecoveredLedger,
    TaskEntry,
};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::task::{Task, WorkflowDefinition};

/// State that a coordinator restored from its ledger.
#[derive(Clone, Debug, Default)]
pub struct RestoreReport {
    /// Open batches, in the order of submission.
    pub batches: Vec<RestoredBatch>,
    /// Results of the last closed batches, in the order of their ends.
    pub results: Vec<Arc<BatchResult>>,
    /// Newest recorded model version.
    pub version: u64,
    /// Incomplete record at the end of the log, never acknowledged.
    pub torn: Option<TornTail>,
}

/// A resumed batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredBatch {
    pub batch: BatchId,
    pub kind: BatchType,
    pub tasks: usize,
    /// Number of runs that are not repeated.
    pub ended_runs: usize,
}

/// Returns the folder and the options of the ledger of a job. `None`: the job has no ledger.
pub fn ledger_options(config: &Config) -> Option<(PathBuf, LedgerOptions)> {
    let options =
        LedgerOptions { bytes_max: config.ledger.max_bytes, ..LedgerOptions::new(config.job()) };
    Some((config.ledger_dir()?, options))
}

/// A batch of the ledger with its decoded tasks.
#[derive(Debug)]
pub(crate) struct RestoredCoreBatch {
    pub(crate) batch: RecoveredBatch,
    pub(crate) tasks: Vec<Arc<Task>>,
}

/// An open ledger.
#[derive(Debug)]
pub(crate) struct LedgerBridge {
    ledger: Ledger,
    /// A stop cancels unfinished batches in memory only: the ledger keeps them for a resume.
    stopping: bool,
    /// Error of a failed write: from then on nothing is reported as synced.
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

    /// Checks that the ledger has space for a batch.
    pub(crate) fn admits(&self, batch: &BatchId, tasks: &[Arc<Task>]) -> Result<(), LedgerError> {
        // Upper bound of the other fields of a record.
        const OVERHEAD: usize = 64;
        let own = |task: &Arc<Task>| task.body.len() + task.workflow.len() + OVERHEAD;
        let mut bytes: usize = tasks.iter().map(own).sum();
        let mut last = None;
        for definition in tasks.iter().filter_map(|task| task.definition.as_ref()) {
            if last.replace(Arc::as_ptr(definition)) != Some(Arc::as_ptr(definition)) {
                bytes += definition.body.len() + OVERHEAD;
            }
        }
        self.ledger.admits(batch, bytes as u64)
    }

    /// Ignores cancellations and aborts from now on.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Records the submission of a batch.
    pub(crate) fn submitted(&self, record: &LedgerRecord, tasks: &[Arc<Task>]) {
        let LedgerRecord::Submitted { batch, id, kind, min_wait_num, .. } = record else { return };
        let tasks = task_records(tasks);
        self.append(LedgerEntry::Submitted {
            key: *batch,
            batch: id,
            kind: *kind,
            min_wait_num: *min_wait_num,
            tasks: &tasks,
        });
    }

    /// Writes any other record.
    pub(crate) fn append_record(&self, record: LedgerRecord, payloads: &HashMap<PayloadId, Bytes>) {
        let key = record.batch();
        match record {
            // Written with its tasks by `submitted`.
            LedgerRecord::Submitted { .. } => {}
            LedgerRecord::RunEnded { task, run, ending, .. } => {
                if self.stopping && matches!(ending, RunEnd::Cancelled(_)) {
                    return;
                }
                let end = ending.map(|RunOutput { payload, metrics }| {
                    let bytes = |payload: Payload| payloads.get(&payload.id).cloned();
                    RunOutput { payload: payload.and_then(bytes), metrics }
                });
                self.append(LedgerEntry::RunEnded { key, task, run, end: &end });
            }
            LedgerRecord::Truncated { .. } | LedgerRecord::Aborting { .. } if self.stopping => {}
            LedgerRecord::Truncated { reason, keep, .. } => {
                self.note(key, &BatchMark::Truncated { reason, keep })
            }
            LedgerRecord::Aborting { reason, .. } => self.note(key, &BatchMark::Aborting(reason)),
            LedgerRecord::DeliveryStarted { .. } => self.note(key, &BatchMark::DeliveryStarted),
            LedgerRecord::Closed(result)
                if self.stopping && result.state == BatchState::Aborted => {}
            LedgerRecord::Closed(result) => self.append(LedgerEntry::BatchEnded(&result)),
        }
    }

    /// Records the model version and replies once it is synced.
    pub(crate) fn version(&self, version: u64, reply: oneshot::Sender<crate::Result<()>>) {
        if let Err(error) = self.ledger.append(LedgerEntry::Version(version)) {
            let _ = reply.send(Err(Error::Ledger(error.to_string())));
            return;
        }
        self.when_durable(move |synced| {
            let _ = reply.send(synced.map_err(|error| Error::Ledger(error.to_string())));
        });
    }

    /// Syncs and closes the ledger in the background, then calls `then`.
    pub(crate) fn close(self, then: impl FnOnce(Result<(), Arc<str>>) + Send + 'static) {
        tokio::task::spawn_blocking(move || {
            let synced = self.ledger.sync().map_err(|error| error.to_string().into());
            drop(self);
            then(synced);
        });
    }

    /// Calls `then` once all earlier records are synced, or with the error: immediately, or on the
    /// ledger's thread, which it must not block.
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
        // Not expected: batches that do not fit are refused before.
        if let Err(error) = self.ledger.append(record) {
            let message = format!("a record is missing, start again: {error}");
            tracing::error!(message, "ledger write failed");
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

    /// Returns the records of the batch in order. `store` keeps the bytes of a payload.
    pub(crate) fn records(
        self,
        tasks: Vec<TaskSpec>,
        mut store: impl FnMut(Bytes) -> Payload,
    ) -> impl Iterator<Item = LedgerRecord> {
        let RecoveredBatch { key, batch: id, kind, min_wait_num, ended, notes, .. } = self.batch;
        let submitted = LedgerRecord::Submitted { batch: key, id, kind, min_wait_num, tasks };
        let ended = ended.into_iter().map(move |(task, run, end)| {
            let ending = end.map(|output| output.map_payload(&mut store));
            LedgerRecord::RunEnded { batch: key, task, run, ending }
        });
        let notes = notes.into_iter().map(move |note| match note {
            BatchMark::Truncated { reason, keep } => {
                LedgerRecord::Truncated { batch: key, reason, keep }
            }
            BatchMark::DeliveryStarted => LedgerRecord::DeliveryStarted { batch: key },
            BatchMark::Aborting(reason) => LedgerRecord::Aborting { batch: key, reason },
        });
        [submitted].into_iter().chain(ended).chain(notes)
    }
}

/// Encodes tasks; consecutive tasks share the bytes of an equal workflow definition.
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

/// Decodes the tasks of a batch. `None`: a workflow definition is invalid.
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

/// Encodes a definition: two texts with their lengths, then the body.
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
    fn nothing_is_synced_after_a_failed_write() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let (ledger, _) = LedgerBridge::open(folder.path(), LedgerOptions::new("job"))?;
        ledger.when_durable(|synced| assert_eq!(synced, Ok(())));
        let ending =
            RunEnd::Failed(RunFailure { kind: FailureKind::Workflow, message: "x".into() });
        let (batch, task, run) = (BatchKey(7), TaskId(0), RunId(0));
        ledger.append_record(LedgerRecord::RunEnded { batch, task, run, ending }, &HashMap::new());
        let (send, synced) = std::sync::mpsc::channel();
        ledger.when_durable(move |done| send.send(done).unwrap_or_default());
        assert!(synced.recv()?.is_err_and(|message| message.contains("a record is missing")));
        Ok(())
    }
}
