//! Pass rates of the tasks of a batch: feedback for the selectors of tasks.

use std::collections::BTreeMap;

/// Mean reward of one task of a taskset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassRate {
    /// Taskset of the task (`info.task_index.taskset_id`).
    pub taskset_id: u64,
    /// Index of the task in its taskset (`info.task_index.index`).
    pub index: u64,
    pub value: f64,
    pub count: usize,
}

/// Pass rates of the tasks of a batch: ascending by taskset and index, no task twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassRates(BTreeMap<(u64, u64), PassRate>);

impl PassRates {
    /// Adds a pass rate unless the task has one, and returns whether it was added.
    pub fn add(&mut self, rate: PassRate) -> bool {
        let key = (rate.taskset_id, rate.index);
        let added = !self.0.contains_key(&key);
        if added {
            self.0.insert(key, rate);
        }
        added
    }

    pub fn iter(&self) -> impl Iterator<Item = &PassRate> {
        self.0.values()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns indices and values of each taskset, in the form that selectors use.
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
    /// Collects pass rates; the first of each task wins.
    fn from_iter<I: IntoIterator<Item = PassRate>>(rates: I) -> Self {
        let mut collected = Self::default();
        for rate in rates {
            collected.add(rate);
        }
        collected
    }
}
