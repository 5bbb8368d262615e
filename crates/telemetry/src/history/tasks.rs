//! Tasks of a batch, and the runs of one task side by side.

use std::cmp::Ordering;
use std::path::Path;

use super::row::{Batch, TaskRow, finite, nonzero};
use super::state::State;
use crate::view::{
    BatchRuns, ComparedRun, RunState, TaskDetail, TaskPage, TaskQuery, TaskSort, TaskSummary,
};

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

/// Counts and ranges of the runs of a task.
struct TaskStats {
    runs: BatchRuns,
    rewards: Range,
    tokens: Range,
}

impl State {
    /// Returns a page of the tasks of the latest batch with this name.
    pub(super) fn tasks(&self, query: &TaskQuery) -> Option<TaskPage> {
        let (_, batch) = self.latest(&query.batch)?;
        let key = |(number, task): (usize, &TaskRow)| {
            let key = match query.sort {
                TaskSort::Order => Some(number as f64),
                sort => self.task_stats(task).key(sort),
            };
            (key, number as u32)
        };
        let mut keys: Vec<(Option<f64>, u32)> = batch.tasks.iter().enumerate().map(key).collect();
        keys.sort_by(|a, b| compare(a.0, b.0, query.desc));
        let limit = if query.limit == 0 { PAGE } else { query.limit.min(PAGE) };
        let page = keys.iter().skip(query.offset).take(limit);
        let tasks = page.map(|(_, task)| self.task_summary(batch, *task)).collect();
        Some(TaskPage { total: keys.len() as u64, tasks })
    }

    /// Returns a task with its runs and their conversations.
    pub(super) fn task(&self, dir: &Path, name: &str, task: u32, now: f64) -> Option<TaskDetail> {
        let (number, batch) = self.latest(name)?;
        let rows = self.rows_of(number, task)?;
        let known = rows.clone().filter_map(|number| Some((number, self.row(number)?)));
        let members = known.take(MAX_RUNS).map(|(number, run)| {
            let (messages, truncated) = self.conversation(dir, number);
            ComparedRun { row: self.shown(run, now), messages, truncated }
        });
        let members: Vec<ComparedRun> = members.collect();
        let more = (rows.end - rows.start).saturating_sub(members.len() as u64);
        Some(TaskDetail { row: self.task_summary(batch, task), members, more })
    }

    /// Returns the latest batch with this name and its number.
    fn latest(&self, name: &str) -> Option<(u32, &Batch)> {
        let mut named = self.batches.iter().rev().filter(|(_, batch)| *batch.id == *name);
        named.next().map(|(number, batch)| (*number, batch))
    }

    fn task_summary(&self, batch: &Batch, task: u32) -> TaskSummary {
        let found = &batch.tasks[task as usize];
        let TaskStats { runs, rewards, tokens } = self.task_stats(found);
        let workflow = self.workflows.text(found.workflow);
        TaskSummary {
            batch: batch.id.to_string(),
            task,
            kind: batch.kind.to_string(),
            workflow: workflow.map(ToString::to_string).unwrap_or_default(),
            runs,
            reward: rewards.mean(),
            min: rewards.of(rewards.min),
            max: rewards.of(rewards.max),
            tokens: tokens.mean(),
            dropped: found.dropped.map(|reason| reason.name().to_owned()),
        }
    }

    fn task_stats(&self, task: &TaskRow) -> TaskStats {
        let (mut runs, mut rewards, mut tokens) =
            (BatchRuns::default(), Range::EMPTY, Range::EMPTY);
        let rows = task.first..task.first + u64::from(task.runs);
        for run in rows.filter_map(|number| self.row(number)) {
            let count = match run.state {
                RunState::Pending => &mut runs.pending,
                RunState::Running => &mut runs.running,
                RunState::Succeeded => &mut runs.succeeded,
                RunState::Failed => &mut runs.failed,
                RunState::Cancelled => &mut runs.cancelled,
            };
            *count += 1;
            if run.state == RunState::Succeeded {
                rewards.add(finite(run.reward));
                tokens.add(nonzero(run.tokens).map(f64::from));
            }
        }
        TaskStats { runs, rewards, tokens }
    }
}

impl TaskStats {
    fn key(&self, sort: TaskSort) -> Option<f64> {
        match sort {
            TaskSort::Order => None,
            TaskSort::Reward => self.rewards.mean(),
            TaskSort::Spread => self.rewards.of(self.rewards.max - self.rewards.min),
            TaskSort::Tokens => self.tokens.mean(),
            TaskSort::Failed => Some(self.runs.failed as f64),
        }
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
