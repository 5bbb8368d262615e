//! Failed runs grouped by kind and message.

use std::sync::Arc;

use rollway_core::FailureKind;
use rustc_hash::FxHashMap;

use super::state::State;
use crate::failures::{OTHER, headline, pattern};
use crate::view::{FailureRow, RunKey};

/// Maximum number of groups; further messages count as one group for each kind.
const MAX_GROUPS: usize = 500;

#[derive(Debug, Default)]
pub(super) struct FailureGroups(FxHashMap<(FailureKind, Box<str>), Group>);

#[derive(Debug)]
struct Group {
    message: Arc<str>,
    count: u64,
    /// End and row number of the newest run.
    at: f64,
    row: u64,
}

impl FailureGroups {
    pub(super) fn add(&mut self, at: f64, row: u64, kind: FailureKind, message: &str) {
        let line = headline(message);
        let mut key = (kind, pattern(&line).into_boxed_str());
        let mut message = line.as_str();
        if self.0.len() >= MAX_GROUPS && !self.0.contains_key(&key) {
            (key, message) = ((kind, OTHER.into()), OTHER);
        }
        let group = self.0.entry(key).or_insert_with(|| Group {
            message: message.into(),
            count: 0,
            at: f64::NEG_INFINITY,
            row,
        });
        group.count += 1;
        if at >= group.at {
            (group.at, group.row) = (at, row);
            if *group.message != *message {
                group.message = message.into();
            }
        }
    }
}

impl State {
    /// Returns the groups, the most frequent first.
    pub(super) fn failures(&self) -> Vec<FailureRow> {
        let mut rows: Vec<FailureRow> = self
            .failures
            .0
            .iter()
            .map(|((kind, _), group)| FailureRow {
                kind: kind.name().to_owned(),
                message: group.message.to_string(),
                count: group.count,
                at: group.at,
                run: self.key_of(group.row),
            })
            .collect();
        rows.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.message.cmp(&b.message)));
        rows
    }

    fn key_of(&self, number: u64) -> Option<RunKey> {
        let row = self.row(number)?;
        let batch = self.batches.get(&row.batch)?.id.to_string();
        Some(RunKey { batch, task: row.task, run: row.run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_separate_groups_and_groups_are_limited() {
        let mut groups = FailureGroups::default();
        for at in 0..10 {
            let message = format!("no end after 3{at}.5 s\n  at line {at}");
            groups.add(f64::from(at), u64::from(at as u32), FailureKind::Timeout, &message);
        }
        let [group] = &groups.0.values().collect::<Vec<_>>()[..] else { panic!("one group") };
        assert_eq!((group.count, &*group.message, group.row), (10, "no end after 39.5 s", 9));
        let name = |at: usize| format!("{at:b}").replace('0', "a").replace('1', "b");
        (0..600).for_each(|at| groups.add(0.0, 0, FailureKind::Workflow, &name(at)));
        assert!(groups.0.len() <= MAX_GROUPS + 1);
        let others = &groups.0[&(FailureKind::Workflow, OTHER.into())];
        let total: u64 = groups.0.values().map(|group| group.count).sum();
        assert!(others.count > 0 && total == 610, "{total}");
    }
}
