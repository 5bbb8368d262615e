//! Failures of runs, grouped by kind and message: the first of each group is logged in full when
//! it happens, all are counted for the summary.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parking_lot::Mutex;
use rollway_core::{FailureKind, RunEnd, RunId, TaskId};
use rollway_engine::events::{RunEvent, RunEventKind, RunObserver};
use serde::{Deserialize, Serialize};

/// Maximum length of the message of a group.
const MAX_MESSAGE_CHARS: usize = 300;

/// Message of the group of failures beyond the limit.
pub(crate) const OTHER: &str = "other messages";

/// Failures with the same kind and message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailureGroup {
    pub kind: String,
    /// First line of the first failure: the exception.
    pub message: String,
    /// Runs that failed for good.
    pub failed: u64,
    /// Attempts whose run was retried.
    pub retried: u64,
}

/// Counts failures by kind and message. Numbers within messages make no difference.
#[derive(Debug)]
pub struct FailureTally {
    max_groups: usize,
    groups: Mutex<BTreeMap<(String, String), FailureGroup>>,
}

impl FailureTally {
    /// Continues the groups of an earlier process.
    pub fn new(max_groups: u32, earlier: Vec<FailureGroup>) -> Self {
        let entry = |group: FailureGroup| ((group.kind.clone(), pattern(&group.message)), group);
        let groups = Mutex::new(earlier.into_iter().map(entry).collect());
        Self { max_groups: max_groups as usize, groups }
    }

    /// Returns the groups, the most frequent first.
    pub fn groups(&self) -> Vec<FailureGroup> {
        let mut groups: Vec<FailureGroup> = self.groups.lock().values().cloned().collect();
        groups.sort_by_key(|group| Reverse((group.failed, group.retried)));
        groups
    }

    /// Counts a failure. Returns whether it is the first of its group.
    fn add(&self, kind: FailureKind, message: &str, is_retried: bool) -> bool {
        let headline = headline(message);
        let mut groups = self.groups.lock();
        let mut key = (kind.to_string(), pattern(&headline));
        let mut is_first = false;
        if !groups.contains_key(&key) {
            let message = if groups.len() < self.max_groups {
                is_first = true;
                headline
            } else {
                key.1 = OTHER.to_owned();
                OTHER.to_owned()
            };
            let group = FailureGroup { kind: key.0.clone(), message, ..FailureGroup::default() };
            groups.entry(key.clone()).or_insert(group);
        }
        if let Some(group) = groups.get_mut(&key) {
            let count = if is_retried { &mut group.retried } else { &mut group.failed };
            *count += 1;
        }
        is_first
    }

    fn failed(&self, kind: FailureKind, message: &str, (task, run): (TaskId, RunId), again: bool) {
        if self.add(kind, message, again) {
            let next = if again { ", which is retried" } else { "" };
            let (message, remedy) = (message.trim_end(), kind.remedy());
            tracing::warn!(
                "run failed: {message}\n{kind} failure of task {}, run {}{next}; further ones \
                 with this message are counted\nhint: {remedy}",
                task.0,
                run.0,
            );
        }
    }
}

impl RunObserver for FailureTally {
    fn observe(&self, events: &[RunEvent]) {
        for event in events {
            match &event.what {
                RunEventKind::RunRetried { task, run, kind, message, .. } => {
                    self.failed(*kind, message, (*task, *run), true);
                }
                RunEventKind::RunEnded { task, run, how: RunEnd::Failed(failure), .. } => {
                    self.failed(failure.kind, &failure.message, (*task, *run), false);
                }
                _ => {}
            }
        }
    }
}

/// Returns the first line, which names the exception, truncated.
pub(crate) fn headline(message: &str) -> String {
    let line = message.trim_start().lines().next().unwrap_or("no message").trim_end();
    match line.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Returns a message with every number replaced, so that failures that differ in an id or a size
/// are one group.
pub(crate) fn pattern(message: &str) -> String {
    let mut pattern = String::with_capacity(message.len());
    for letter in message.chars() {
        match letter.is_ascii_digit() {
            false => pattern.push(letter),
            true if pattern.ends_with('#') => {}
            true => pattern.push('#'),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_grouped_by_kind_and_message_and_the_rest_is_counted() {
        let tally = FailureTally::new(2, Vec::new());
        let workflow = FailureKind::Workflow;
        assert!(tally.add(workflow, "KeyError: 'a' (flows.py:7)\n  line\n  ^^^", true));
        assert!(!tally.add(workflow, "KeyError: 'a' (flows.py:8)", false));
        assert!(tally.add(FailureKind::Timeout, "no end after 5 s", false));
        for message in ["ValueError", "TypeError", "TypeError"] {
            assert!(!tally.add(workflow, message, false), "the limit is reached");
        }
        let tally = FailureTally::new(2, tally.groups());
        assert!(!tally.add(FailureKind::Timeout, "no end after 60 s", false));
        let groups = tally.groups();
        let shown = |group: &FailureGroup| (group.message.clone(), group.failed, group.retried);
        let shown: Vec<_> = groups.iter().map(shown).collect();
        let expected =
            [(OTHER, 3, 0), ("no end after 5 s", 2, 0), ("KeyError: 'a' (flows.py:7)", 1, 1)];
        assert_eq!(
            shown,
            expected.map(|(message, failed, retried)| (message.to_owned(), failed, retried))
        );
    }
}
