//! Reader of SQL buffers.
//!
//! A read polls until there is enough, time is up or data has ended, then claims everything it
//! returns in one transaction; a waiting reader holds nothing. After a crash a seek to the saved
//! position returns the claimed rows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::super::{BufferError, ExperienceReader, ReadEnd, ReadRequest, ReadResult, Result};
use super::reconnect::{ReconnectingSession, UnconfirmedCommit};
use super::{ReadOrder, Session, SqlCell, SqlDatabase, SqlError, SqlStore, SqlValue, signed};
use crate::Sample;

pub(super) struct SqlReader<D: SqlDatabase> {
    link: ReconnectingSession<D>,
    name: String,
    mode: ReadMode,
    position: i64,
    /// Claim with an unconfirmed commit.
    unsettled: UnconfirmedCommit<Option<Claim>>,
    /// Rows of a claim confirmed late, for a read that requested fewer.
    claimed: VecDeque<SqlRow>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ReadMode {
    Log,
    Pool,
}

/// Rows taken by one transaction.
#[derive(Debug)]
struct Claim {
    rows: Vec<SqlRow>,
    stale: usize,
    /// Position behind all rows.
    position: i64,
    finished: bool,
}

#[derive(Debug)]
struct SqlRow {
    /// Position behind this row.
    position: i64,
    sample: Sample,
}

impl<D: SqlDatabase> SqlReader<D> {
    pub(super) fn open(mut link: ReconnectingSession<D>, name: &str) -> Result<Self> {
        let store = Arc::clone(&link.store);
        let log = store.options.order == ReadOrder::Fifo && !store.options.reuse;
        let mode = if log { ReadMode::Log } else { ReadMode::Pool };
        let position = link.transact(&mut None, |session| {
            session.execute(&store.queries.open_reader, &[SqlValue::Text(name)])?;
            let rows = match mode {
                ReadMode::Log => session.query(&store.queries.cursor, &[SqlValue::Text(name)])?,
                ReadMode::Pool => session.query(&store.queries.ticket, &[])?,
            };
            store.number(rows.first(), 0)
        })?;
        let claimed = VecDeque::new();
        Ok(Self { link, name: name.into(), mode, position, unsettled: None, claimed })
    }

    /// Waits until a claim is worth making, and makes it.
    fn claim(&mut self, request: &ReadRequest) -> Result<Claim> {
        let until = Instant::now().checked_add(request.timeout);
        loop {
            let (enough, finished) = self.check_ready(request)?;
            let timed_out = until.is_some_and(|until| Instant::now() >= until);
            // An unconfirmed claim is settled first.
            if enough || finished || timed_out || self.unsettled.is_some() {
                // Another reader may have been faster.
                if let Some(claim) = self.claim_rows(request, !timed_out)? {
                    return Ok(claim);
                }
            }
            // The timeout may be unlimited; a single wait is not.
            let most = Instant::now() + self.link.store.options.call_timeout;
            let until = until.map_or(most, |until| until.min(most));
            self.link.wait(until);
        }
    }

    /// Returns whether there is enough and whether data has ended.
    fn check_ready(&mut self, request: &ReadRequest) -> Result<(bool, bool)> {
        let store = Arc::clone(&self.link.store);
        let (count, least) = (signed(request.count as u64), signed(request.min_model_version));
        let (mode, name) = (self.mode, &self.name);
        self.link.retry(|session| {
            session.mark()?;
            let rows = match mode {
                ReadMode::Log => {
                    let values = [SqlValue::Text(name), SqlValue::Int(least), SqlValue::Int(count)];
                    session.query(&store.queries.log_ready, &values)?
                }
                ReadMode::Pool => {
                    let values = [SqlValue::Int(least), SqlValue::Int(count)];
                    session.query(&store.queries.pool_ready, &values)?
                }
            };
            let row = rows.first();
            Ok((store.number(row, 0)? >= count, store.finished(row)?))
        })
    }

    /// Claims available rows; `None` if `whole` is required and there are too few.
    fn claim_rows(&mut self, request: &ReadRequest, whole: bool) -> Result<Option<Claim>> {
        let store = Arc::clone(&self.link.store);
        let (mode, name) = (self.mode, &self.name);
        self.link.transact(&mut self.unsettled, |session| match mode {
            ReadMode::Log => take_log(&store, session, name, request, whole),
            ReadMode::Pool => take_pool(&store, session, name, request, whole),
        })
    }
}

impl<D: SqlDatabase> ExperienceReader for SqlReader<D> {
    /// `request.keep` has no effect: rows stay, so a seek can always return.
    fn read(&mut self, request: &ReadRequest) -> Result<ReadResult> {
        let (mut stale, mut finished) = (0, false);
        if request.count == 0 {
            return Ok(ReadResult { samples: Vec::new(), stale, end: ReadEnd::Full });
        }
        if self.claimed.is_empty() {
            let claim = self.claim(request)?;
            (stale, finished) = (claim.stale, claim.finished);
            self.claimed = claim.rows.into();
            if self.claimed.is_empty() {
                self.position = claim.position;
            } else if let Some(last) = self.claimed.back_mut() {
                last.position = claim.position;
            }
        }
        let mut samples = Vec::with_capacity(self.claimed.len().min(request.count));
        while samples.len() < request.count
            && let Some(row) = self.claimed.pop_front()
        {
            self.position = row.position;
            if row.sample.model_version < request.min_model_version {
                stale += 1;
            } else {
                samples.push(row.sample);
            }
        }
        let end = match samples.len() {
            count if count >= request.count => ReadEnd::Full,
            _ if finished => ReadEnd::Finished,
            _ => ReadEnd::TimedOut,
        };
        Ok(ReadResult { samples, stale, end })
    }

    /// Returns `id:` and the last id returned or skipped, or `claim:` and the number of the last
    /// claim.
    fn position(&self) -> String {
        format!("{}{}", self.mode.prefix(), self.position)
    }

    /// Moves all readers of this name.
    fn seek(&mut self, position: &str) -> Result<()> {
        let store = Arc::clone(&self.link.store);
        let prefix = self.mode.prefix();
        let target = position.strip_prefix(prefix).and_then(|number| number.parse::<i64>().ok());
        let Some(target) = target.filter(|target| *target >= 0) else {
            return Err(store.unsupported(format!(
                "the position {position:?} is not one of a reader with these options: those begin \
                 with `{prefix}`"
            )));
        };
        let (mode, name) = (self.mode, &self.name);
        self.link.transact(&mut None, |session| {
            let newest = match mode {
                ReadMode::Log => &store.queries.newest,
                ReadMode::Pool => &store.queries.ticket,
            };
            let newest = store.number(session.query(newest, &[])?.first(), 0)?;
            if target > newest {
                return Err(store
                    .unsupported(format!(
                        "the position {position:?} is later than the newest one, {newest}; check \
                         that it was saved for this database"
                    ))
                    .into());
            }
            let values = [SqlValue::Int(target), SqlValue::Text(name)];
            match mode {
                ReadMode::Log => session.execute(&store.queries.move_cursor, &values)?,
                ReadMode::Pool => session.execute(&store.queries.pool_undo, &values)?,
            };
            session.announce()
        })?;
        // Unreturned claims lie behind the position and are read again.
        self.unsettled = None;
        self.claimed.clear();
        self.position = target;
        Ok(())
    }
}

impl ReadMode {
    fn prefix(self) -> &'static str {
        match self {
            Self::Log => "id:",
            Self::Pool => "claim:",
        }
    }
}

fn take_log<D: SqlDatabase>(
    store: &SqlStore<D>,
    session: &mut D::SqlSession,
    name: &str,
    request: &ReadRequest,
    whole: bool,
) -> Result<Option<Claim>, SqlError> {
    let queries = &store.queries;
    let (count, least) = (signed(request.count as u64), signed(request.min_model_version));
    // Locks out other readers of this name.
    let rows = session.query(&queries.lock_cursor, &[SqlValue::Text(name)])?;
    let from = store.number(rows.first(), 0)?;
    let rows = session.query(&queries.log_end, &[])?;
    let newest = store.number(rows.first(), 0)?;
    let finished = store.finished(rows.first())?;

    let bounds = [from, newest, least, count].map(SqlValue::Int);
    let rows = session.query(&queries.log_rows, &bounds)?;
    let rows: Vec<SqlRow> = rows.into_iter().map(|row| store.row(row)).collect::<Result<_>>()?;
    if rows.len() < request.count && whole && !finished {
        return Ok(None);
    }
    let to = match rows.last() {
        Some(last) if rows.len() >= request.count => last.position,
        // Only rows that are too old follow the last wanted row.
        _ => newest.max(from),
    };
    let mut stale = 0;
    if to > from {
        if least > 0 {
            let found = session.query(&queries.log_stale, &[from, to, least].map(SqlValue::Int))?;
            stale = usize::try_from(store.number(found.first(), 0)?).unwrap_or(0);
        }
        session.execute(&queries.move_cursor, &[SqlValue::Int(to), SqlValue::Text(name)])?;
    }
    Ok(Some(Claim { rows, stale, position: to, finished }))
}

fn take_pool<D: SqlDatabase>(
    store: &SqlStore<D>,
    session: &mut D::SqlSession,
    name: &str,
    request: &ReadRequest,
    whole: bool,
) -> Result<Option<Claim>, SqlError> {
    let queries = &store.queries;
    let (count, least) = (signed(request.count as u64), signed(request.min_model_version));
    // The new ticket locks out other readers until the commit.
    let ticket = store.number(session.query(&queries.next_ticket, &[])?.first(), 0)?;
    let rows = session.query(&queries.pool_ready, &[SqlValue::Int(least), SqlValue::Int(count)])?;
    let finished = store.finished(rows.first())?;
    if store.number(rows.first(), 0)? < count && whole && !finished {
        return Ok(None);
    }
    let claim =
        [SqlValue::Int(ticket), SqlValue::Text(name), SqlValue::Int(least), SqlValue::Int(count)];
    let stale = session.execute(&queries.pool_stale, &claim[..3])?;
    // After the writers closed nothing is reused, or data would never end.
    let take = if finished { &queries.pool_take_fresh } else { &queries.pool_take };
    let mut rows = session.query(take, &claim)?;
    let newest_first = store.options.order == ReadOrder::NewestFirst;
    rows.sort_by_key(|row| match (row.first(), row.last()) {
        (Some(SqlCell::Int(id)), Some(SqlCell::Int(consumed))) => {
            (*consumed, if newest_first { -id } else { *id })
        }
        _ => (0, 0),
    });
    let rows = rows
        .into_iter()
        .map(|row| store.row(row).map(|row| SqlRow { position: ticket - 1, ..row }));
    let rows: Vec<SqlRow> = rows.collect::<Result<_>>()?;
    Ok(Some(Claim { rows, stale, position: ticket, finished }))
}

impl<D: SqlDatabase> SqlStore<D> {
    /// Returns an integer of a row; NULL is 0.
    pub(super) fn number(
        &self,
        row: Option<&Vec<SqlCell>>,
        column: usize,
    ) -> Result<i64, SqlError> {
        match row.and_then(|row| row.get(column)) {
            Some(SqlCell::Int(number)) => Ok(*number),
            Some(SqlCell::Null) => Ok(0),
            other => Err(self.damaged(format!("expected an integer, found {other:?}")).into()),
        }
    }

    /// Returns whether there were writers and none is open, from a row with both counts.
    fn finished(&self, row: Option<&Vec<SqlCell>>) -> Result<bool, SqlError> {
        Ok(self.number(row, 1)? > 0 && self.number(row, 2)? == 0)
    }

    fn row(&self, cells: Vec<SqlCell>) -> Result<SqlRow, BufferError> {
        let Ok([id, uid, version, reward, bytes, _]) = <[SqlCell; 6]>::try_from(cells) else {
            return Err(self.damaged("a row does not have the requested columns"));
        };
        let (SqlCell::Int(id), SqlCell::Text(uid), SqlCell::Int(version), SqlCell::Bytes(payload)) =
            (id, uid, version, bytes)
        else {
            return Err(self.damaged("a row has values of unexpected types"));
        };
        let reward = match reward {
            SqlCell::Real(reward) => Some(reward),
            _ => None,
        };
        let model_version = u64::try_from(version).unwrap_or(0);
        let sample = Sample { id: uid.into(), model_version, reward, payload: payload.into() };
        Ok(SqlRow { position: id, sample })
    }
}
