//! Tasks of a batch, and the runs of one task side by side.

use std::cmp::Ordering;
use std::path::Path;

use super::row::{Batch, Row, finite, known};
use super::state::State;
use crate::view::{RunState, TaskDetail, TaskPage, TaskQuery, TaskRow, TaskRun, TaskSort};

/// Default and maximum length of a page.
const PAGE: usize = 500;

/// Maximum number of runs of a shown task.
const MAX_RUNS: usize = 64;

/// Sum, minimum, maximum and number of values.
#[derive(Clone, Copy)]
struct Range {
    sum: f64,
    min: f64,
    max: f64,
    count: u64,
}

impl Range {
    const EMPTY: Self = Self { sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY, count: 0 };

    fn add(&mut self, value: Option<f64>) {
        let Some(value) = value else { return };
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.count += 1;
    }

    fn of(&self, value: f64) -> Option<f64> {
        (self.count > 0).then_some(value)
    }

    fn mean(&self) -> Option<f64> {
        self.of(self.sum / self.count as f64)
    }
}

impl State {
    /// Returns a page of the tasks of the latest batch with this name.
    pub(super) fn tasks(&self, query: &TaskQuery) -> Option<TaskPage> {
        let (_, batch) = self.latest(&query.batch)?;
        let mut rows: Vec<TaskRow> =
            (0..batch.tasks.len() as u32).map(|task| self.task_row(batch, task)).collect();
        rows.sort_by(|a, b| compare(key(query.sort, a), key(query.sort, b), query.desc));
        let total = rows.len() as u64;
        let limit = if query.limit == 0 { PAGE } else { query.limit.min(PAGE) };
        let tasks = rows.into_iter().skip(query.offset).take(limit).collect();
        Some(TaskPage { total, tasks })
    }

    /// Returns a task with its runs and their conversations.
    pub(super) fn task(&self, dir: &Path, name: &str, task: u32, now: f64) -> Option<TaskDetail> {
        let (number, batch) = self.latest(name)?;
        let rows = self.rows_of(number, task)?;
        let row = self.task_row(batch, task);
        let mut members = Vec::new();
        for (number, run) in rows.clone().filter_map(|it| Some((it, self.row(it)?))).take(MAX_RUNS)
        {
            let (messages, truncated) = self.conversation(dir, number);
            members.push(TaskRun { row: self.shown(run, now), messages, truncated });
        }
        let more = (rows.end - rows.start).saturating_sub(members.len() as u64);
        Some(TaskDetail { row, members, more })
    }

    /// Returns the latest batch with this name and its number.
    fn latest(&self, name: &str) -> Option<(u32, &Batch)> {
        let mut named = self.batches.iter().rev().filter(|(_, batch)| *batch.id == *name);
        named.next().map(|(number, batch)| (*number, batch))
    }

    fn task_row(&self, batch: &Batch, task: u32) -> TaskRow {
        let found = &batch.tasks[task as usize];
        let (mut rewards, mut tokens) = (Range::EMPTY, Range::EMPTY);
        let mut row = TaskRow {
            batch: batch.id.to_string(),
            task,
            kind: batch.kind.to_string(),
            workflow: self
                .workflows
                .text(found.workflow)
                .map(ToString::to_string)
                .unwrap_or_default(),
            dropped: found.dropped.map(|reason| reason.name().to_owned()),
            ..TaskRow::default()
        };
        let runs = found.first..found.first + u64::from(found.runs);
        for run in runs.filter_map(|number| self.row(number)) {
            *count(&mut row, run) += 1;
            if run.state == RunState::Succeeded {
                rewards.add(finite(run.reward));
                tokens.add(known(run.tokens).map(f64::from));
            }
        }
        row.reward = rewards.mean();
        (row.min, row.max) = (rewards.of(rewards.min), rewards.of(rewards.max));
        row.tokens = tokens.mean();
        row
    }
}

/// Returns the counter of the run's state.
fn count<'a>(row: &'a mut TaskRow, run: &Row) -> &'a mut u64 {
    match run.state {
        RunState::Pending => &mut row.runs.pending,
        RunState::Running => &mut row.runs.running,
        RunState::Succeeded => &mut row.runs.succeeded,
        RunState::Failed => &mut row.runs.failed,
        RunState::Cancelled => &mut row.runs.cancelled,
    }
}

fn key(sort: TaskSort, row: &TaskRow) -> Option<f64> {
    match sort {
        TaskSort::Order => Some(f64::from(row.task)),
        TaskSort::Reward => row.reward,
        TaskSort::Spread => Some(row.max? - row.min?),
        TaskSort::Tokens => row.tokens,
        TaskSort::Failed => Some(row.runs.failed as f64),
    }
}

/// Orders by value; unknown values come last in both directions.
fn compare(a: Option<f64>, b: Option<f64>, desc: bool) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) if desc => b.total_cmp(&a),
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}
