//! Queries of runs: filter, order and page.

use std::cmp::Ordering;
use std::fmt::Write as _;

use rollway_core::BatchType;

use super::interner::contains;
use super::row::{Row, finite, nonzero};
use super::state::State;
use super::text_search::TextMatches;
use crate::view::{self, RunPage, RunQuery, RunRow, RunSort, RunState};

/// Default length of a page.
const PAGE: usize = 100;

/// Maximum length of a page.
const MAX_PAGE: usize = 1_000;

struct Filter<'a> {
    query: &'a RunQuery,
    batches: Option<Vec<u32>>,
    kind: Option<BatchType>,
    text: Option<Text<'a>>,
}

/// Text to search for.
struct Text<'a> {
    text: String,
    matches: &'a TextMatches,
    messages: Vec<bool>,
    workflows: Vec<bool>,
    /// Batches whose ids contain it.
    batches: Vec<u32>,
    /// It can be a part of `batch/task/run` beyond the batch id.
    is_number: bool,
}

impl State {
    /// Returns a page of runs; `matches` are those with the text of the query in their messages.
    pub(super) fn runs(&self, query: &RunQuery, matches: &TextMatches, now: f64) -> RunPage {
        let filter = Filter::new(self, query, matches);
        let mut found: Vec<(f64, u64)> = Vec::new();
        for (number, row) in self.candidates(query) {
            if filter.has(self, row) {
                found.push((key(query.sort, row, number, now), number));
            }
        }
        let total = found.len() as u64;
        let limit = if query.limit == 0 { PAGE } else { query.limit.min(MAX_PAGE) };
        let end = query.offset.saturating_add(limit).min(found.len());
        let start = query.offset.min(end);
        let order = |a: &(f64, u64), b: &(f64, u64)| compare(a, b, query.desc);
        if end > 0 && end < found.len() {
            found.select_nth_unstable_by(end - 1, order);
        }
        found[..end].sort_unstable_by(order);
        let page = found[start..end].iter().filter_map(|(_, number)| self.row(*number));
        let runs = page.map(|row| self.shown(row, now)).collect();
        RunPage { total, runs, searching: matches.is_partial }
    }

    /// Returns all rows, or those of the wanted batch.
    fn candidates<'a>(
        &'a self,
        query: &'a RunQuery,
    ) -> Box<dyn Iterator<Item = (u64, &'a Row)> + 'a> {
        let Some(name) = &query.batch else {
            return Box::new((self.base..).zip(self.rows.iter()));
        };
        let batches = self.batches.values().filter(move |batch| *batch.id == **name);
        let tasks = batches.flat_map(|batch| batch.tasks.iter());
        let numbers = tasks.flat_map(|task| task.first..task.first + u64::from(task.runs));
        Box::new(numbers.filter_map(|number| self.row(number).map(|row| (number, row))))
    }

    pub(super) fn shown(&self, row: &Row, now: f64) -> RunRow {
        let batch = self.batches.get(&row.batch);
        let task = batch.and_then(|batch| batch.tasks.get(row.task as usize));
        let workflow = task.and_then(|task| self.workflows.text(task.workflow));
        RunRow {
            batch: batch.map(|batch| batch.id.to_string()).unwrap_or_default(),
            task: row.task,
            run: row.run,
            kind: batch.map(|batch| batch.kind.to_string()).unwrap_or_default(),
            workflow: workflow.map(ToString::to_string).unwrap_or_default(),
            state: row.state,
            attempts: row.attempts.into(),
            runner: nonzero(row.runner),
            begin: finite(row.begin),
            end: finite(row.end),
            seconds: finite(duration(row, now)),
            reward: finite(row.reward),
            tokens: nonzero(row.tokens).map(u64::from),
            turns: nonzero(row.turns).map(u64::from),
            version: nonzero(row.version).map(u64::from),
            message: self.messages.text(row.message).map(ToString::to_string),
        }
    }

    /// Returns the row number of the latest run with this key.
    pub(super) fn find(&self, key: &view::RunKey) -> Option<u64> {
        let named = self.batches.iter().rev().filter(|(_, batch)| *batch.id == *key.batch);
        let mut numbers = named.filter_map(|(number, _)| self.row_of(*number, key.task, key.run));
        numbers.find(|number| self.row(*number).is_some())
    }
}

/// Returns the duration of a run until its end or now.
fn duration(row: &Row, now: f64) -> f64 {
    if row.state == RunState::Running { now - row.begin } else { row.seconds }
}

fn key(sort: RunSort, row: &Row, number: u64, now: f64) -> f64 {
    let count = |number: u32| nonzero(number).map_or(f64::NAN, f64::from);
    match sort {
        RunSort::Order => number as f64,
        RunSort::Begin => row.begin,
        RunSort::End => row.end,
        RunSort::Seconds => duration(row, now),
        RunSort::Reward => row.reward,
        RunSort::Tokens => count(row.tokens),
        RunSort::Attempts => row.attempts.into(),
        RunSort::State => f64::from(row.state as u8),
    }
}

/// Orders by value; unknown values come last in both directions.
fn compare(a: &(f64, u64), b: &(f64, u64), desc: bool) -> Ordering {
    let by_key = match (a.0.is_nan(), b.0.is_nan()) {
        (false, false) if desc => b.0.total_cmp(&a.0),
        (false, false) => a.0.total_cmp(&b.0),
        (a, b) => a.cmp(&b),
    };
    by_key.then(a.1.cmp(&b.1))
}

impl<'a> Filter<'a> {
    fn new(state: &State, query: &'a RunQuery, matches: &'a TextMatches) -> Self {
        let named = |name: &String| {
            let batches = state.batches.iter().filter(|(_, batch)| *batch.id == **name);
            batches.map(|(number, _)| *number).collect()
        };
        let kind = query.kind.as_deref().and_then(|kind| match kind {
            "train" => Some(BatchType::Train),
            "eval" => Some(BatchType::Eval),
            _ => None,
        });
        let text = query.searched().map(|text| Text::new(state, text, matches));
        let batches = query.batch.as_ref().map(named);
        Self { query, batches, kind, text }
    }

    fn has(&self, state: &State, row: &Row) -> bool {
        let of = |wanted: &Vec<u32>| wanted.contains(&row.batch);
        self.query.state.is_none_or(|wanted| row.state == wanted)
            && self.query.task.is_none_or(|wanted| row.task == wanted)
            // An unknown reward is not a number, which is neither larger nor smaller.
            && self.query.min_reward.is_none_or(|least| row.reward >= least)
            && self.query.max_reward.is_none_or(|most| row.reward <= most)
            && self.batches.as_ref().is_none_or(of)
            && self.kind.is_none_or(|wanted| {
                state.batches.get(&row.batch).is_some_and(|batch| batch.kind == wanted)
            })
            && self.text.as_ref().is_none_or(|text| text.has(state, row))
    }
}

impl<'a> Text<'a> {
    fn new(state: &State, text: &str, matches: &'a TextMatches) -> Self {
        let text = text.to_lowercase();
        let named = state.batches.iter().filter(|(_, batch)| contains(&batch.id, &text));
        Self {
            messages: state.messages.containing(&text),
            workflows: state.workflows.containing(&text),
            batches: named.map(|(number, _)| *number).collect(),
            is_number: text.bytes().any(|byte| byte == b'/' || byte.is_ascii_digit()),
            text,
            matches,
        }
    }

    fn has(&self, state: &State, row: &Row) -> bool {
        let is_in = |list: &[bool], number: u32| number > 0 && list[number as usize];
        if is_in(&self.messages, row.message)
            || self.batches.binary_search(&row.batch).is_ok()
            || self.matches.has(row.batch, row.task, row.run)
        {
            return true;
        }
        let Some(batch) = state.batches.get(&row.batch) else { return false };
        let workflow = batch.tasks.get(row.task as usize).map_or(0, |task| task.workflow);
        if is_in(&self.workflows, workflow) {
            return true;
        }
        if !self.is_number {
            return false;
        }
        let mut name = String::with_capacity(batch.id.len() + 16);
        // Writing to a string cannot fail.
        let _ = write!(name, "{}/{}/{}", batch.id, row.task, row.run);
        contains(&name, &self.text)
    }
}
