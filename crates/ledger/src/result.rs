//! Encoding of batch results.

use std::sync::Arc;

use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchState, BatchType, ByCancelReason, ByDropReason,
    ByFailureKind, CancelReason, DropReason, FailedRun, FailureKind, RunId, RunTally, Status,
    TaskId, TaskTally,
};

use super::codec::{Decoded, EntryReader, put, put_float, put_metrics, put_option, put_text};

pub(super) fn put_id(out: &mut Vec<u8>, id: &BatchId) {
    match id {
        BatchId::Number(number) => {
            out.push(0);
            // Zigzag encoding keeps small negative numbers short.
            put(out, (number << 1 ^ number >> 63) as u64);
        }
        BatchId::Text(text) => {
            out.push(1);
            put_text(out, text);
        }
    }
}

pub(super) fn read_id(reader: &mut EntryReader<'_>) -> Decoded<BatchId> {
    match reader.number()? {
        0 => {
            let number = reader.number()?;
            Ok(BatchId::Number((number >> 1) as i64 ^ -((number & 1) as i64)))
        }
        1 => reader.shared_text().map(BatchId::Text),
        other => Err(format!("{other} where the type of a batch id is expected")),
    }
}

pub(super) fn put_kind(out: &mut Vec<u8>, kind: BatchType) {
    out.push(match kind {
        BatchType::Train => 0,
        BatchType::Eval => 1,
    });
}

pub(super) fn read_kind(reader: &mut EntryReader<'_>) -> Decoded<BatchType> {
    match reader.number()? {
        0 => Ok(BatchType::Train),
        1 => Ok(BatchType::Eval),
        other => Err(format!("the unknown kind of batch {other}")),
    }
}

/// Encodes the non-zero counts under their names.
macro_rules! tables {
    ($($table:ident of $name:ident: $put:ident, $read:ident;)+) => {$(
        fn $put(out: &mut Vec<u8>, table: &$table) {
            put(out, table.nonzero().count() as u64);
            for (name, count) in table.nonzero() {
                put_text(out, name.name());
                put(out, count);
            }
        }

        fn $read(reader: &mut EntryReader<'_>) -> Decoded<$table> {
            let mut table = $table::default();
            for _ in 0..reader.count()? {
                let name = reader.name($name::ALL, $name::name)?;
                table[name] = reader.number()?;
            }
            Ok(table)
        }
    )+};
}
tables!(
    ByFailureKind of FailureKind: put_failures, read_failures;
    ByCancelReason of CancelReason: put_cancels, read_cancels;
    ByDropReason of DropReason: put_drops, read_drops;
);

fn put_status(out: &mut Vec<u8>, status: &Status) {
    put(out, status.completed_runs.into());
    put(out, status.total_runs.into());
    put_failures(out, &status.failed_runs);
    put_cancels(out, &status.cancelled_runs);
    put_option(out, status.first_error.as_ref(), |out, error| {
        put(out, error.run.0.into());
        put_text(out, error.kind.name());
        put_text(out, &error.message);
    });
    put(out, status.run_metrics.len() as u64);
    status.run_metrics.iter().for_each(|metrics| put_metrics(out, metrics));
    put(out, status.attempt_seconds.len() as u64);
    status.attempt_seconds.iter().for_each(|seconds| put_float(out, *seconds));
}

fn read_status(reader: &mut EntryReader<'_>) -> Decoded<Status> {
    Ok(Status {
        completed_runs: reader.small()?,
        total_runs: reader.small()?,
        failed_runs: read_failures(reader)?,
        cancelled_runs: read_cancels(reader)?,
        first_error: reader.option(|reader| {
            Ok(FailedRun {
                run: RunId(reader.small()?),
                kind: reader.name(FailureKind::ALL, FailureKind::name)?,
                message: reader.shared_text()?,
            })
        })?,
        run_metrics: reader.list(EntryReader::metrics)?,
        attempt_seconds: reader.list(EntryReader::float)?,
    })
}

pub(super) fn put_result(out: &mut Vec<u8>, result: &BatchResult) {
    put_id(out, &result.batch);
    put(out, result.key.0);
    put_kind(out, result.kind);
    out.push(u8::from(result.state == BatchState::Aborted));
    put_option(out, result.reason.as_deref(), put_text);
    let TaskTally { ok, partial, failed, cancelled } = result.tasks;
    [ok, partial, failed, cancelled].into_iter().for_each(|count| put(out, count));
    let RunTally { submitted, pending, running, succeeded, failed, cancelled } = &result.runs;
    [submitted, pending, running, succeeded].into_iter().for_each(|count| put(out, *count));
    put_failures(out, failed);
    put_cancels(out, cancelled);
    put(out, result.delivered);
    put_drops(out, &result.dropped);
    put(out, result.uncertain);
    put(out, result.statuses.len() as u64);
    for (task, status) in &result.statuses {
        put(out, task.0.into());
        put_status(out, status);
    }
    put_metrics(out, &result.sink_metrics);
}

pub(super) fn read_result(reader: &mut EntryReader<'_>) -> Decoded<BatchResult> {
    Ok(BatchResult {
        batch: read_id(reader)?,
        key: BatchKey(reader.number()?),
        kind: read_kind(reader)?,
        state: match reader.number()? {
            0 => BatchState::Finalized,
            1 => BatchState::Aborted,
            other => return Err(format!("the unknown end of a batch {other}")),
        },
        reason: reader.option(EntryReader::shared_text)?,
        tasks: TaskTally {
            ok: reader.number()?,
            partial: reader.number()?,
            failed: reader.number()?,
            cancelled: reader.number()?,
        },
        runs: RunTally {
            submitted: reader.number()?,
            pending: reader.number()?,
            running: reader.number()?,
            succeeded: reader.number()?,
            failed: read_failures(reader)?,
            cancelled: read_cancels(reader)?,
        },
        delivered: reader.number()?,
        dropped: read_drops(reader)?,
        uncertain: reader.number()?,
        statuses: reader
            .list(|reader| Ok((TaskId(reader.small()?), Arc::new(read_status(reader)?))))?,
        sink_metrics: reader.metrics()?,
    })
}
