//! Records of the ledger and their encoding; `docs/ledger.md` lists the fields.

use std::sync::Arc;

use bytes::Bytes;
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchType, CancelReason, FailureKind, RunEnd, RunFailure,
    RunId, RunOutput, TaskId,
};

use super::codec::{Decoded, EntryReader, put, put_metrics, put_option, put_text};
use super::result::{put_id, put_kind, put_result, read_id, read_kind, read_result};
use crate::log::FramePart;

/// A record to append.
#[derive(Clone, Copy, Debug)]
pub enum LedgerEntry<'a> {
    /// A batch was submitted; no active batch has its id.
    Submitted {
        /// Key that was never used before.
        key: BatchKey,
        batch: &'a BatchId,
        kind: BatchType,
        /// Number of tasks that suffice.
        min_wait_num: Option<u32>,
        /// Tasks; their indices are their ids.
        tasks: &'a [TaskEntry],
    },
    /// A run ended for good.
    RunEnded {
        key: BatchKey,
        task: TaskId,
        run: RunId,
        end: &'a RunEnd<RunOutput<Bytes>>,
    },
    Noted {
        key: BatchKey,
        note: &'a BatchMark,
    },
    BatchEnded(&'a BatchResult),
    Version(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEntry {
    pub workflow: Arc<str>,
    /// Bytes that tasks have in common, such as the workflow. Neighbours with equal bytes share
    /// them in the ledger and after recovery.
    pub common: Option<Bytes>,
    pub repeat_times: u32,
    pub bytes: Bytes,
}

/// Event of a whole batch before its end, each at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchMark {
    /// Unfinished runs were cancelled.
    Truncated {
        reason: CancelReason,
        /// Unfinished tasks keep their finished runs.
        keep: bool,
    },
    /// Delivery to the sink starts.
    DeliveryStarted,
    /// The batch is being aborted, for this reason.
    Aborting(Arc<str>),
}

pub(super) const SUBMITTED: u8 = 1;
pub(super) const RUN_ENDED: u8 = 2;
pub(super) const BATCH_ENDED: u8 = 3;
pub(super) const STATE: u8 = 4;
pub(super) const NOTED: u8 = 5;

/// Job-wide counters. The largest value ever written of each counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LedgerCounters {
    /// Newest model version.
    pub(super) version: u64,
    /// Number of times the ledger was opened.
    pub(super) epoch: u64,
    /// Number of batches that ended.
    pub(super) ends: u64,
}

/// Encodes a submission: task heads, then the task bytes, returned as shared parts.
pub(super) fn put_submitted<'a>(
    out: &mut Vec<u8>,
    key: u64,
    (batch, kind, min_wait_num): (&BatchId, BatchType, Option<u32>),
    tasks: &'a [TaskEntry],
) -> Vec<FramePart<'a>> {
    out.push(SUBMITTED);
    put(out, key);
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
            Some(common) if last.is_some_and(|last| share_bytes(last, common)) => put(out, 1),
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

fn share_bytes(a: &Bytes, b: &Bytes) -> bool {
    (a.as_ptr() == b.as_ptr() && a.len() == b.len()) || a == b
}

/// Encodes the end of a run without its payload, which follows.
pub(super) fn put_run_ended(
    out: &mut Vec<u8>,
    key: u64,
    (task, run): (TaskId, RunId),
    end: &RunEnd<RunOutput<Bytes>>,
) {
    out.push(RUN_ENDED);
    put(out, key);
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

pub(super) fn put_noted(out: &mut Vec<u8>, key: u64, note: &BatchMark) {
    out.push(NOTED);
    put(out, key);
    match note {
        BatchMark::Truncated { reason, keep } => {
            out.push(u8::from(*keep));
            put_text(out, reason.name());
        }
        BatchMark::DeliveryStarted => out.push(2),
        BatchMark::Aborting(reason) => {
            out.push(3);
            put_text(out, reason);
        }
    }
}

pub(super) fn put_batch_ended(out: &mut Vec<u8>, key: u64, end: u64, result: &BatchResult) {
    out.push(BATCH_ENDED);
    put(out, key);
    put(out, end);
    put_result(out, result);
}

pub(super) fn put_state(out: &mut Vec<u8>, state: LedgerCounters) {
    out.push(STATE);
    [state.version, state.epoch, state.ends].into_iter().for_each(|number| put(out, number));
}

/// A decoded record.
#[derive(Debug)]
pub(super) enum DecodedEntry {
    Submitted {
        key: u64,
        batch: BatchId,
        kind: BatchType,
        min_wait_num: Option<u32>,
        tasks: Vec<TaskEntry>,
    },
    RunEnded {
        key: u64,
        task: TaskId,
        run: RunId,
        end: RunEnd<RunOutput<Bytes>>,
    },
    Noted {
        key: u64,
        note: BatchMark,
    },
    BatchEnded {
        key: u64,
        end: u64,
        result: Arc<BatchResult>,
    },
    State(LedgerCounters),
}

/// Reads the kind of a record and the number behind it: a batch key, except for [`STATE`].
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
            key: reader.number()?,
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
    let key = reader.number()?;
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
    Ok(DecodedEntry::Submitted { key, batch, kind, min_wait_num, tasks })
}

fn read_noted(reader: &mut EntryReader<'_>) -> Decoded<DecodedEntry> {
    let key = reader.number()?;
    let note = match reader.number()? {
        keep @ 0..=1 => {
            let reason = reader.name(CancelReason::ALL, CancelReason::name)?;
            BatchMark::Truncated { reason, keep: keep == 1 }
        }
        2 => BatchMark::DeliveryStarted,
        3 => BatchMark::Aborting(reader.shared_text()?),
        other => return Err(format!("the unknown note {other}")),
    };
    Ok(DecodedEntry::Noted { key, note })
}

fn read_run_ended(reader: &mut EntryReader<'_>) -> Decoded<DecodedEntry> {
    let key = reader.number()?;
    let (task, run) = (TaskId(reader.small()?), RunId(reader.small()?));
    let end = match reader.number()? {
        tag @ 0..=1 => {
            let metrics = reader.metrics()?;
            let payload = (tag == 1).then(|| reader.bytes(reader.0.len() as u64)).transpose()?;
            RunEnd::Succeeded(RunOutput { payload: payload.map(Bytes::copy_from_slice), metrics })
        }
        2 => RunEnd::Failed(RunFailure {
            kind: reader.name(FailureKind::ALL, FailureKind::name)?,
            message: reader.shared_text()?,
        }),
        3 => RunEnd::Cancelled(reader.name(CancelReason::ALL, CancelReason::name)?),
        other => return Err(format!("the unknown end of a run {other}")),
    };
    Ok(DecodedEntry::RunEnded { key, task, run, end })
}
