//! Fairness between workflows: detects one whose tasks wait longer or are cancelled more often.
//! Training data would be biased towards fast tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of workflows; further ones are ignored.
const MAX_CLASSES: usize = 64;

/// Minimum number of tasks of a workflow.
const MIN_TASKS: u32 = 20;

/// Window of the averages in tasks.
const WINDOW: u32 = 64;

/// Shorter waits count as this many seconds.
const MIN_WAIT_SECONDS: f64 = 1.0;

/// Hysteresis of a raised alarm.
const CLEAR_FACTOR: f64 = 0.8;

#[derive(Debug)]
pub(super) struct WorkflowFairness {
    /// Maximum ratio to the other workflows. `None`: not checked.
    factor: Option<f64>,
    entries: BTreeMap<Arc<str>, WorkflowAverages>,
}

#[derive(Debug, Default)]
struct WorkflowAverages {
    wait: Average,
    kept: Average,
}

/// Moving average.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    count: u32,
    value: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum StarvedWorkflow {
    /// Mean waits in seconds.
    Waits { workflow: Arc<str>, its: f64, others: f64 },
    /// Shares of kept tasks.
    Cancelled { workflow: Arc<str>, its: f64, others: f64 },
}

impl Average {
    fn add(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        self.value += (value - self.value) / f64::from(self.count.min(WINDOW));
    }

    const fn value(&self) -> Option<f64> {
        if self.count >= MIN_TASKS { Some(self.value) } else { None }
    }
}

impl WorkflowFairness {
    pub(super) const fn new(factor: Option<f64>) -> Self {
        Self { factor, entries: BTreeMap::new() }
    }

    pub(super) fn waited(&mut self, workflow: &Arc<str>, waited: Duration) {
        if let Some(workflow) = self.workflow(workflow) {
            workflow.wait.add(waited.as_secs_f64());
        }
    }

    pub(super) fn ended(&mut self, workflow: &Arc<str>, is_kept: bool) {
        if let Some(workflow) = self.workflow(workflow) {
            workflow.kept.add(f64::from(u8::from(is_kept)));
        }
    }

    fn workflow(&mut self, workflow: &Arc<str>) -> Option<&mut WorkflowAverages> {
        self.factor?;
        if !self.entries.contains_key(workflow) {
            if self.entries.len() >= MAX_CLASSES {
                return None;
            }
            self.entries.insert(Arc::clone(workflow), WorkflowAverages::default());
        }
        self.entries.get_mut(workflow)
    }

    /// Returns a starved workflow. A raised alarm lowers the limit.
    pub(super) fn starved(&self, is_raised: bool) -> Option<StarvedWorkflow> {
        let factor = self.factor? * if is_raised { CLEAR_FACTOR } else { 1.0 };
        if self.entries.len() < 2 {
            return None;
        }
        let waits = |workflow: &WorkflowAverages| workflow.wait.value();
        let kept = |workflow: &WorkflowAverages| workflow.kept.value();
        let (all_waits, all_kept) = (self.all(waits), self.all(kept));
        self.entries.iter().find_map(|(workflow, averages)| {
            if let Some((its, others)) = compare(waits(averages), all_waits)
                && its > factor * others.max(MIN_WAIT_SECONDS)
            {
                return Some(StarvedWorkflow::Waits {
                    workflow: Arc::clone(workflow),
                    its,
                    others,
                });
            }
            let (its, others) = compare(kept(averages), all_kept)?;
            let is_starved = its * factor < others;
            is_starved.then(|| StarvedWorkflow::Cancelled {
                workflow: Arc::clone(workflow),
                its,
                others,
            })
        })
    }

    /// Returns sum and number of the known averages.
    fn all(&self, average: impl Fn(&WorkflowAverages) -> Option<f64>) -> (f64, u32) {
        let values = self.entries.values().filter_map(average);
        values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1))
    }
}

/// Returns the average of one workflow and the mean of the others.
fn compare(its: Option<f64>, (sum, count): (f64, u32)) -> Option<(f64, f64)> {
    let (its, others) = (its?, count.checked_sub(1).filter(|others| *others > 0)?);
    Some((its, (sum - its) / f64::from(others)))
}
