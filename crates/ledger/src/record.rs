//! What the ledger is told, and how it is written. `docs/ledger.md` lists the records.

use std::sync::Arc;

use bytes::Bytes;
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchType, CancelReason, FailureKind, RunEnd, RunFailure,
    RunId, RunOutput, TaskId,
};

use super::codec::{Decoded, EntryReader, put, put_metrics, put_option, put_text};
use super::result::{put_id, put_kind, put_result, read_id, read_kind, read_result};
use crate::log::FramePart;

/// One fact to be remembered.
#[derive(Clone, Copy, Debug)]
pub enum LedgerEntry<'a> {
    /// A batch was submitted. Its id is not that of a batch that has not ended.
    Submitted {
        /// Its key, never used before.
        key: BatchKey,
        /// Its name.
        batch: &'a BatchId,
        /// Whether it is trained on.
        kind: BatchType,
        /// How many of its tasks are enough.
        min_wait_num: Option<u32>,
        /// Its tasks; their places are their ids.
        tasks: &'a [TaskEntry],
    },
    /// A run came to its end: it is not tried again.
    RunEnded { key: BatchKey, task: TaskId, run: RunId, end: &'a RunEnd<RunOutput<Bytes>> },
    /// Something else happened to a batch.
    Noted { key: BatchKey, note: &'a BatchMark },
    /// A batch was finalized or aborted.
    BatchEnded(&'a BatchResult),
    /// The model has this version now.
    Version(u64),
}

/// A task of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEntry {
    /// The name of its workflow.
    pub workflow: Arc<str>,
    /// Whatever tasks have in common, such as the workflow itself. Neighbours that share the bytes
    /// share them in the ledger, and again when they are recovered.
    pub common: Option<Bytes>,
    /// How many runs are wanted.
    pub repeat_times: u32,
    /// The task itself.
    pub bytes: Bytes,
}

/// What can happen to a batch as a whole before it ends, each once. `rollway_core::Record` tells
/// more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchMark {
    /// Runs that had not ended were cancelled.
    Cut {
        reason: CancelReason,
        /// Whether unfinished tasks keep the good runs that they had.
        keep: bool,
    },
    /// Its results are about to be offered to the sink.
    Offered,
    /// It was given up, in these words.
    GivenUp(Arc<str>),
}

pub(super) const SUBMITTED: u8 = 1;
pub(super) const RUN_ENDED: u8 = 2;
pub(super) const BATCH_ENDED: u8 = 3;
pub(super) const STATE: u8 = 4;
pub(super) const NOTED: u8 = 5;

/// What stands above all batches. The largest of every number that was ever written counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LedgerCounters {
    /// Of the model.
    pub(super) version: u64,
    /// How often the ledger was opened.
    pub(super) epoch: u64,
    /// How many batches have ended.
    pub(super) ends: u64,
}

/// Writes a submission: the tasks first, then all their bytes, returned as parts to be shared.
pub(super) fn put_submitted<'a>(
    out: &mut Vec<u8>,
    life: u64,
    (batch, kind, min_wait_num): (&BatchId, BatchType, Option<u32>),
    tasks: &'a [TaskEntry],
) -> Vec<FramePart<'a>> {
    out.push(SUBMITTED);
    put(out, life);
    put_id(out, batch);
    put_kind(out, kind);
    put_option(out, min_wait_num.map(u64::from), put);
    put(out, tasks.len() as u64);
    let mut parts = Vec::with_capacity(tasks.len());
    let mut last: Option<&Bytes> = None;
    for task in tasks {
        put_text(out, &task.workflow);
        put(out, task.repeat_times.into());
        // 0: nothing in common; 1: the same as the task before; otherwise two more than its length.
        match &task.common {
            None => put(out, 0),
            Some(common) if last.is_some_and(|last| same(last, common)) => put(out, 1),
            Some(common) => {
                put(out, common.len() as u64 + 2);
                parts.push(FramePart::Share(common));
                last = Some(common);
            }
        }
        put(out, task.bytes.len() as u64);
        parts.push(FramePart::Share(&task.bytes));
    }
    parts
}

fn same(a: &Bytes, b: &Bytes) -> bool {
    (a.as_ptr() == b.as_ptr() && a.len() == b.len()) || a == b
}

/// Writes the end of a run, but for its payload, which follows.
pub(super) fn put_run_ended(
    out: &mut Vec<u8>,
    life: u64,
    (task, run): (TaskId, RunId),
    end: &RunEnd<RunOutput<Bytes>>,
) {
    out.push(RUN_ENDED);
    put(out, life);
    put(out, task.0.into());
    put(out, run.0.into());
    match end {
        RunEnd::Succeeded(RunOutput { payload, metrics }) => {
            out.push(u8::from(payload.is_some()));
            put_metrics(out, metrics);
        }
        RunEnd::Failed(RunFailure { kind, message }) => {
            out.push(2);
            put_text(out, kind.name());
            put_text(out, message);
        }
        RunEnd::Cancelled(reason) => {
            out.push(3);
            put_text(out, reason.name());
        }
    }
}

pub(super) fn put_noted(out: &mut Vec<u8>, life: u64, note: &BatchMark) {
    out.push(NOTED);
    put(out, life);
    match note {
        BatchMark::Cut { reason, keep } => {
            out.push(u8::from(*keep));
            put_text(out, reason.name());
        }
        BatchMark::Offered => out.push(2),
        BatchMark::GivenUp(reason) => {
            out.push(3);
            put_text(out, reason);
        }
    }
}

pub(super) fn put_batch_ended(out: &mut Vec<u8>, life: u64, end: u64, result: &BatchResult) {
    out.push(BATCH_ENDED);
    put(out, life);
    put(out, end);
    put_result(out, result);
}

pub(super) fn put_state(out: &mut Vec<u8>, state: LedgerCounters) {
    out.push(STATE);
    [state.version, state.epoch, state.ends].into_iter().for_each(|number| put(out, number));
}

/// A record as it is read.
#[derive(Debug)]
pub(super) enum DecodedEntry {
    Submitted {
        life: u64,
        batch: BatchId,
        kind: BatchType,
        min_wait_num: Option<u32>,
        tasks: Vec<TaskEntry>,
    },
    RunEnded {
        life: u64,
        task: TaskId,
        run: RunId,
        end: RunEnd<RunOutput<Bytes>>,
    },
    Noted {
        life: u64,
        note: BatchMark,
    },
    BatchEnded {
        life: u64,
        end: u64,
        result: Arc<BatchResult>,
    },
    State(LedgerCounters),
}

/// Reads the kind of a record and the number behind it, which is a life but for [`STATE`].
pub(super) fn peek(bytes: &[u8]) -> Decoded<(u8, u64)> {
    let mut reader = EntryReader(bytes);
    Ok((reader.bytes(1)?[0], reader.number()?))
}

pub(super) fn read(bytes: &[u8]) -> Decoded<DecodedEntry> {
    let mut reader = EntryReader(bytes);
    let kind = reader.bytes(1)?[0];
    let record = match kind {
        SUBMITTED => read_submitted(&mut reader)?,
        RUN_ENDED => read_run_ended(&mut reader)?,
        BATCH_ENDED => DecodedEntry::BatchEnded {
            life: reader.number()?,
            end: reader.number()?,
            result: Arc::new(read_result(&mut reader)?),
        },
        NOTED => read_noted(&mut reader)?,
        STATE => DecodedEntry::State(LedgerCounters {
            version: reader.number()?,
            epoch: reader.number()?,
            ends: reader.number()?,
        }),
        kind => return Err(format!("the unknown kind of record {kind}")),
    };
    reader.end()?;
    Ok(record)
}

fn read_submitted(reader: &mut EntryReader<'_>) -> Decoded<DecodedEntry> {
    let life = reader.number()?;
    let batch = read_id(reader)?;
    let kind = read_kind(reader)?;
    let min_wait_num = reader.option(EntryReader::small)?;
    let heads = reader.list(|reader| {
        Ok((reader.shared_text()?, reader.small()?, reader.number()?, reader.number()?))
    })?;
    let mut tasks = Vec::with_capacity(heads.len());
    let mut last = None;
    for (workflow, repeat_times, common, length) in heads {
        if common >= 2 {
            last = Some(Bytes::copy_from_slice(reader.bytes(common - 2)?));
        }
        let common = match common {
            0 => None,
            _ => Some(last.clone().ok_or("a task that has something in common with no other")?),
        };
        let bytes = Bytes::copy_from_slice(reader.bytes(length)?);
        tasks.push(TaskEntry { workflow, common, repeat_times, bytes });
    }
    Ok(DecodedEntry::Submitted { life, batch, kind, min_wait_num, tasks })
}

fn read_noted(reader: &mut EntryReader<'_>) -> Decoded<DecodedEntry> {
    let life = reader.number()?;
    let note = match reader.number()? {
        keep @ 0..=1 => {
            let reason = reader.name(CancelReason::ALL, CancelReason::name)?;
            BatchMark::Cut { reason, keep: keep == 1 }
        }
        2 => BatchMark::Offered,
        3 => BatchMark::GivenUp(reader.shared_text()?),
        other => return Err(format!("the unknown note {other}")),
    };
    Ok(DecodedEntry::Noted { life, note })
}

fn read_run_ended(reader: &mut EntryReader<'_>) -> Decoded<DecodedEntry> {
    let life = reader.number()?;
    let (task, run) = (TaskId(reader.small()?), RunId(reader.small()?));
    let end = match reader.number()? {
        how @ 0..=1 => {
            let metrics = reader.metrics()?;
            let payload = (how == 1).then(|| reader.bytes(reader.0.len() as u64)).transpose()?;
            RunEnd::Succeeded(RunOutput { payload: payload.map(Bytes::copy_from_slice), metrics })
        }
        2 => RunEnd::Failed(RunFailure {
            kind: reader.name(FailureKind::ALL, FailureKind::name)?,
            message: reader.shared_text()?,
        }),
        3 => RunEnd::Cancelled(reader.name(CancelReason::ALL, CancelReason::name)?),
        other => return Err(format!("the unknown end of a run {other}")),
    };
    Ok(DecodedEntry::RunEnded { life, task, run, end })
}
