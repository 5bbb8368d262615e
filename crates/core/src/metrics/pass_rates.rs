//! Pass rates of the tasks of a batch: the feedback that selectors of tasks learn from.

use std::collections::BTreeMap;

/// Mean reward of one task of a taskset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassRate {
    /// Taskset of the task (`info.task_index.taskset_id`).
    pub taskset_id: u64,
    /// Index of the task in its taskset (`info.task_index.index`).
    pub index: u64,
    /// Mean of its rewards.
    pub value: f64,
    /// Number of rewards.
    pub count: usize,
}

/// The pass rates of the tasks of a batch: ascending by taskset and index, no task twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassRates(BTreeMap<(u64, u64), PassRate>);

impl PassRates {
    /// Adds a pass rate, unless there is one of the same task. Tells whether it was added.
    pub fn add(&mut self, rate: PassRate) -> bool {
        let mut added = false;
        self.0.entry((rate.taskset_id, rate.index)).or_insert_with(|| {
            added = true;
            rate
        });
        added
    }

    /// Iterates over the pass rates, by taskset and index.
    pub fn iter(&self) -> impl Iterator<Item = &PassRate> {
        self.0.values()
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no pass rates.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns indices and values of each taskset, as selectors take them.
    pub fn by_taskset(&self) -> BTreeMap<u64, (Vec<u64>, Vec<f64>)> {
        let mut tasksets: BTreeMap<u64, (Vec<u64>, Vec<f64>)> = BTreeMap::new();
        for rate in self.iter() {
            let (indices, values) = tasksets.entry(rate.taskset_id).or_default();
            indices.push(rate.index);
            values.push(rate.value);
        }
        tasksets
    }
}

impl FromIterator<PassRate> for PassRates {
    /// Collects pass rates; of several of the same task the first counts.
    fn from_iter<I: IntoIterator<Item = PassRate>>(rates: I) -> Self {
        let mut metric = Self::default();
        for rate in rates {
            metric.add(rate);
        }
        metric
    }
}
