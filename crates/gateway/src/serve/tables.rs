//! Content of the database and all SQL statements. Callers have begun a transaction.
//!
//! A recorded choice is a row of `proxy_history`: without feedback, then queued, then committed,
//! when only its id is left. Feedback is a row of `proxy_feedback` until its step is done; a step
//! is a row of `proxy_step`. `proxy_state` has the name of the store and counters.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rollway_base::FileLock;
use rollway_base::Secret;
use rollway_experience::IdPart;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, ToSql, params};

use super::database::{SCHEMA, failed, lock, prepare};
use super::feedback::{Feedback, FeedbackOutcome, FeedbackReceipt};
use super::store::{ServeStoreCounts, ServeStoreOptions, StoreError};
use rollway_recording::Turn;

const LAYOUT: u64 = 1;

/// A choice without feedback.
const RECORDED: u8 = 0;
/// A choice with feedback that is not committed.
const QUEUED: u8 = 1;
/// A choice that was delivered to the trainer; only its id is left.
const COMMITTED: u8 = 2;

/// Number of finished steps that are kept for inspection.
const STEPS_KEPT: u64 = 1000;

/// Maximum number of rows removed per transaction.
const MAX_PRUNED_ROWS: u64 = 1000;

const PRUNE_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct TurnRow {
    answer: String,
    choice: u64,
    model: String,
    turn: Vec<u8>,
}

impl TurnRow {
    pub(super) fn new(turn: &Turn) -> serde_json::Result<Self> {
        let (answer, choice) = split(&turn.id).unwrap_or((&turn.id, 0));
        let (answer, model) = (answer.to_owned(), turn.model.clone());
        Ok(Self { answer, choice, model, turn: serde_json::to_vec(turn)? })
    }

    pub(super) fn bytes(&self) -> usize {
        self.turn.len()
    }
}

/// Splits an id into response and choice. `None`: it names a response.
fn split(id: &str) -> Option<(&str, u64)> {
    let (answer, choice) = id.rsplit_once('/')?;
    Some((answer, choice.parse().ok()?))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) step: u64,
    /// Unique among the steps of all stores.
    pub(super) key: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) reward: f64,
    pub(super) task: IdPart,
    pub(super) run: u64,
}

#[derive(Clone, Debug)]
pub(super) struct CommittedRow {
    pub(super) step: u64,
    pub(super) experiences: u64,
    pub(super) metrics: String,
}

#[derive(Debug)]
pub(super) struct Tables {
    connection: Connection,
    options: ServeStoreOptions,
    /// Unique name of the store.
    name: String,
    totals: ServeStoreCounts,
    pruned: Option<Instant>,
    _lock: FileLock,
}

impl Tables {
    pub(super) fn open(options: &ServeStoreOptions) -> Result<Self, StoreError> {
        let path = &options.path;
        let fail = |error: &dyn std::fmt::Display| failed(path, error);
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
            fs::create_dir_all(folder).map_err(|error| fail(&error))?;
        }
        let lock = lock(path)?;
        let connection = prepare(path).map_err(|error| fail(&error))?;
        let new_name = Secret::random().map_err(|error| fail(&error))?;
        let mut tables = Self {
            connection,
            options: options.clone(),
            name: new_name.reveal()[..16].to_owned(),
            totals: ServeStoreCounts::default(),
            pruned: None,
            _lock: lock,
        };
        tables.begin()?;
        tables.restore()?;
        tables.commit()?;
        Ok(tables)
    }

    fn restore(&mut self) -> Result<(), StoreError> {
        let name = self.name.clone();
        self.totals = self.execute(|c| {
            c.execute_batch(SCHEMA)?;
            let put = "INSERT INTO proxy_state VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            c.execute(put, params!["layout", LAYOUT])?;
            c.execute(put, params!["name", name])?;
            let number = |sql: &str| c.query_row(sql, [], |row| row.get::<_, Option<u64>>(0));
            let of_state = |what: &str, state: u8| {
                number(&format!("SELECT {what} FROM proxy_history WHERE state = {state}"))
            };
            let value = "SELECT value FROM proxy_state WHERE name = ?1";
            let state =
                |name: &str| c.query_row(value, [name], |row| row.get::<_, u64>(0)).optional();
            let recorded = "SELECT seq FROM sqlite_sequence WHERE name = 'proxy_history'";
            Ok(ServeStoreCounts {
                recorded: c.query_row(recorded, [], |row| row.get(0)).optional()?.unwrap_or(0),
                ready: of_state("count(*)", QUEUED)?.unwrap_or(0),
                step: number("SELECT max(step) FROM proxy_step WHERE done_at IS NOT NULL")?
                    .unwrap_or(0),
                forgotten: state("forgotten")?.unwrap_or(0),
                expired: state("expired")?.unwrap_or(0),
                rows: number("SELECT count(*) FROM proxy_history")?.unwrap_or(0),
                bytes: of_state("sum(bytes)", RECORDED)?.unwrap_or(0),
                queued_bytes: of_state("sum(bytes)", QUEUED)?.unwrap_or(0),
            })
        })?;
        let (layout, name) = self.execute(|c| {
            let get = "SELECT value FROM proxy_state WHERE name = ?1";
            let layout: u64 = c.query_row(get, ["layout"], |row| row.get(0))?;
            Ok((layout, c.query_row(get, ["name"], |row| row.get(0))?))
        })?;
        if layout != LAYOUT {
            let message = format!("unsupported layout {layout}; this version supports {LAYOUT}");
            return Err(failed(&self.options.path, &message));
        }
        self.name = name;
        Ok(())
    }

    pub(super) fn totals(&self) -> ServeStoreCounts {
        self.totals
    }

    pub(super) fn begin(&self) -> Result<(), StoreError> {
        self.execute(|c| c.execute_batch("BEGIN IMMEDIATE"))
    }

    pub(super) fn commit(&self) -> Result<(), StoreError> {
        self.execute(|c| c.execute_batch("COMMIT"))
    }

    pub(super) fn roll_back(&mut self, before: ServeStoreCounts) {
        self.totals = before;
        // Some errors end the transaction themselves.
        if !self.connection.is_autocommit()
            && let Err(error) = self.execute(|c| c.execute_batch("ROLLBACK"))
        {
            tracing::error!(%error, "cannot roll back a transaction of the turn store");
        }
    }

    pub(super) fn store_turns(&mut self, rows: &[TurnRow]) -> Result<(), StoreError> {
        for row in rows {
            let bytes = row.turn.len() as u64;
            let kept = self.execute(|c| {
                c.prepare_cached(
                    "INSERT INTO proxy_history
                        (answer_id, choice, model, recorded_at, state, bytes, turn)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
                )?
                .execute(params![
                    row.answer,
                    row.choice,
                    row.model,
                    now(),
                    RECORDED,
                    bytes,
                    row.turn
                ])
            })?;
            if kept > 0 {
                let counts = &mut self.totals;
                counts.recorded += 1;
                counts.rows += 1;
                counts.bytes += bytes;
            }
        }
        Ok(())
    }

    pub(super) fn feedback(&mut self, feedback: &Feedback) -> Result<FeedbackOutcome, StoreError> {
        let (queued, limit) = (self.totals.queued_bytes, self.options.max_queued_bytes);
        if queued >= limit {
            return Ok(FeedbackOutcome::Full { bytes: queued, limit });
        }
        let mut receipt = FeedbackReceipt::default();
        let mut fresh = BTreeMap::new();
        for id in &feedback.msg_ids {
            let found = self.find(id)?;
            if found.is_empty() {
                receipt.unknown.push(id.clone());
            }
            for choice in found {
                match choice.state {
                    // It may be named twice: alone, and with its response.
                    RECORDED => drop(fresh.insert(choice.id, choice.bytes)),
                    _ => receipt.already += 1,
                }
            }
        }
        receipt.accepted = fresh.len() as u64;
        if !fresh.is_empty() {
            self.queue(feedback, &fresh)?;
        }
        Ok(FeedbackOutcome::Taken(receipt))
    }

    /// Returns the choices of an id: one choice, or all of a response.
    fn find(&self, id: &str) -> Result<Vec<StoredChoice>, StoreError> {
        let choice = |row: &SqlRow<'_>| {
            Ok(StoredChoice { id: row.get(0)?, state: row.get(1)?, bytes: row.get(2)? })
        };
        self.execute(|c| {
            let sql = "SELECT id, state, bytes FROM proxy_history WHERE answer_id = ?1 ORDER BY id";
            let mut of_answer = c.prepare_cached(sql)?;
            let all = of_answer.query_map([id], choice)?;
            let all = all.collect::<rusqlite::Result<Vec<StoredChoice>>>()?;
            let Some((answer, number)) = split(id).filter(|_| all.is_empty()) else {
                return Ok(all);
            };
            let sql = "SELECT id, state, bytes FROM proxy_history
                WHERE answer_id = ?1 AND choice = ?2";
            c.prepare_cached(sql)?.query_map(params![answer, number], choice)?.collect()
        })
    }

    fn queue(
        &mut self,
        feedback: &Feedback,
        choices: &BTreeMap<u64, u64>,
    ) -> Result<(), StoreError> {
        self.execute(|c| {
            let sql = "INSERT INTO proxy_feedback (reward, task, run, given_at)
                VALUES (?1, ?2, ?3, ?4)";
            let mut insert = c.prepare_cached(sql)?;
            let task: &dyn ToSql = match &feedback.task {
                IdPart::Number(task) => task,
                IdPart::Text(task) => task,
            };
            let number = insert.insert(params![feedback.reward, task, feedback.run, now()])?;
            let sql = "UPDATE proxy_history SET state = ?1, feedback = ?2 WHERE id = ?3";
            let mut update = c.prepare_cached(sql)?;
            choices.keys().try_for_each(|id| update.execute(params![QUEUED, number, id]).map(drop))
        })?;
        let bytes: u64 = choices.values().sum();
        self.totals.queued_bytes += bytes;
        self.totals.bytes = self.totals.bytes.saturating_sub(bytes);
        self.totals.ready += choices.len() as u64;
        Ok(())
    }

    /// Returns the step that is fixed but not finished.
    pub(super) fn begun(&self) -> Result<Option<Fixed>, StoreError> {
        let sql = "SELECT step FROM proxy_step WHERE done_at IS NULL ORDER BY step";
        let step = self.execute(|c| c.query_row(sql, [], |row| row.get::<_, u64>(0)).optional())?;
        Ok(step.map(|step| self.fixed(step)))
    }

    /// Fixes a step with all queued feedback.
    pub(super) fn fix(&mut self) -> Result<Option<Fixed>, StoreError> {
        let step = self.execute(|c| {
            let waits = "SELECT EXISTS (SELECT 1 FROM proxy_feedback WHERE step IS NULL)";
            if !c.query_row(waits, [], |row| row.get::<_, bool>(0))? {
                return Ok(None);
            }
            let last = "SELECT ifnull(max(step), 0) FROM proxy_step";
            let step = c.query_row(last, [], |row| row.get::<_, u64>(0))? + 1;
            let sql = "INSERT INTO proxy_step (step, fixed_at) VALUES (?1, ?2)";
            c.execute(sql, params![step, now()])?;
            c.execute("UPDATE proxy_feedback SET step = ?1 WHERE step IS NULL", [step])?;
            Ok(Some(step))
        })?;
        Ok(step.map(|step| self.fixed(step)))
    }

    fn fixed(&self, step: u64) -> Fixed {
        Fixed { step, key: format!("{}/{step}", self.name) }
    }

    pub(super) fn members(&mut self, step: u64) -> Result<Vec<Member>, StoreError> {
        self.execute(|c| {
            let sql = "SELECT id, reward, task, run FROM proxy_feedback
                WHERE step = ?1 ORDER BY id";
            let member = |row: &SqlRow<'_>| {
                let task = match row.get_ref(2)? {
                    rusqlite::types::ValueRef::Integer(number) => IdPart::Number(number),
                    other => IdPart::Text(other.as_str()?.to_owned()),
                };
                Ok(Member { id: row.get(0)?, reward: row.get(1)?, task, run: row.get(3)? })
            };
            c.prepare_cached(sql)?.query_map([step], member)?.collect()
        })
    }

    pub(super) fn turns(&mut self, feedback: u64) -> Result<Vec<Vec<u8>>, StoreError> {
        self.execute(|c| {
            let sql = "SELECT turn FROM proxy_history
                WHERE feedback = ?1 AND turn IS NOT NULL ORDER BY id";
            c.prepare_cached(sql)?.query_map([feedback], |row| row.get(0))?.collect()
        })
    }

    /// Marks a step as done, and drops its content.
    pub(super) fn settle(&mut self, execute: &CommittedRow) -> Result<(), StoreError> {
        let CommittedRow { step, experiences, metrics } = execute;
        let settled = self.execute(|c| {
            let sql = "UPDATE proxy_step SET done_at = ?1, experiences = ?2, metrics = ?3
                WHERE step = ?4 AND done_at IS NULL";
            if c.execute(sql, params![now(), experiences, metrics, step])? == 0 {
                return Ok(None);
            }
            let of_step = "feedback IN (SELECT id FROM proxy_feedback WHERE step = ?1)";
            let sum = format!("SELECT ifnull(sum(bytes), 0) FROM proxy_history WHERE {of_step}");
            let bytes = c.query_row(&sum, [step], |row| row.get::<_, u64>(0))?;
            let sql = format!(
                "UPDATE proxy_history SET state = {COMMITTED}, turn = NULL, bytes = 0,
                 feedback = NULL WHERE {of_step}"
            );
            let turns = c.execute(&sql, [step])? as u64;
            c.execute("DELETE FROM proxy_feedback WHERE step = ?1", [step])?;
            let old = step.saturating_sub(STEPS_KEPT);
            c.execute("DELETE FROM proxy_step WHERE step < ?1", [old])?;
            Ok(Some((turns, bytes)))
        })?;
        if let Some((turns, bytes)) = settled {
            self.totals.queued_bytes = self.totals.queued_bytes.saturating_sub(bytes);
            let counts = &mut self.totals;
            counts.ready = counts.ready.saturating_sub(turns);
            counts.step = counts.step.max(*step);
        }
        Ok(())
    }

    /// Removes rows beyond the limits, oldest first: ids of committed choices, then choices without
    /// feedback. Queued choices stay.
    pub(super) fn prune(&mut self) -> Result<(), StoreError> {
        let ServeStoreCounts { rows, bytes, .. } = self.totals;
        let excess = rows.saturating_sub(self.options.max_rows);
        if excess > 0 {
            let removed = self.remove(COMMITTED, excess, None)?;
            self.remove(RECORDED, excess - removed.min(excess), None)?;
        }
        while self.totals.bytes > self.options.max_bytes {
            if self.remove(RECORDED, 1, None)? == 0 {
                break;
            }
        }
        let is_time = self.pruned.is_none_or(|last| last.elapsed() >= PRUNE_INTERVAL);
        if is_time || excess > 0 || bytes > self.options.max_bytes {
            self.pruned = Some(Instant::now());
            let age = u64::try_from(self.options.max_age.as_millis()).unwrap_or(u64::MAX);
            let before = now().saturating_sub(age);
            self.remove(COMMITTED, MAX_PRUNED_ROWS, Some(before))?;
            self.remove(RECORDED, MAX_PRUNED_ROWS, Some(before))?;
        }
        Ok(())
    }

    /// Removes the oldest rows of a state, and returns their number.
    fn remove(&mut self, state: u8, most: u64, before: Option<u64>) -> Result<u64, StoreError> {
        let before = before.unwrap_or(i64::MAX as u64);
        let most = most.min(MAX_PRUNED_ROWS);
        if most == 0 {
            return Ok(0);
        }
        let name = if state == COMMITTED { "forgotten" } else { "expired" };
        let sizes = self.execute(|c| {
            let sql = "SELECT id, bytes FROM proxy_history
                WHERE state = ?1 AND recorded_at < ?2 ORDER BY id LIMIT ?3";
            let pair = |row: &SqlRow<'_>| Ok((row.get::<_, u64>(0)?, row.get::<_, u64>(1)?));
            let rows: Vec<(u64, u64)> = c
                .prepare_cached(sql)?
                .query_map(params![state, before, most], pair)?
                .collect::<rusqlite::Result<_>>()?;
            let mut delete = c.prepare_cached("DELETE FROM proxy_history WHERE id = ?1")?;
            for (id, _) in &rows {
                delete.execute([id])?;
            }
            if !rows.is_empty() {
                let sql = "INSERT INTO proxy_state VALUES (?1, ?2)
                    ON CONFLICT DO UPDATE SET value = value + excluded.value";
                c.execute(sql, params![name, rows.len() as u64])?;
            }
            Ok(rows)
        })?;
        let count = sizes.len() as u64;
        let counts = &mut self.totals;
        counts.rows = counts.rows.saturating_sub(count);
        if state == COMMITTED {
            counts.forgotten += count;
        } else {
            counts.expired += count;
            let bytes = sizes.iter().map(|(_, bytes)| bytes).sum();
            counts.bytes = counts.bytes.saturating_sub(bytes);
        }
        Ok(count)
    }

    fn execute<T>(
        &self,
        act: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        act(&self.connection).map_err(|error| failed(&self.options.path, &error))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredChoice {
    id: u64,
    state: u8,
    bytes: u64,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
