//! Whether a class of tasks is served worse than the others: waits longer, or is cut more often.
//! What is trained on would be biased then, towards what is quick.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many classes are told apart; further ones are not judged.
const CLASSES: usize = 64;

/// How many tasks of a class must be known before it is judged.
const MIN_TASKS: u32 = 20;

/// How many tasks the averages reach back.
const REACH: u32 = 64;

/// Waits shorter than this are as good as none.
const SHORT: f64 = 1.0;

/// A raised alarm is cleared only when it is clearly over.
const CLEARLY: f64 = 0.8;

/// How classes fare.
#[derive(Debug)]
pub(super) struct WorkflowFairness {
    /// How much worse a class may fare.
    factor: Option<f64>,
    known: BTreeMap<Arc<str>, Class>,
}

#[derive(Debug, Default)]
struct Class {
    wait: Average,
    kept: Average,
}

/// The average of the last values, roughly.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    count: u32,
    value: f64,
}

/// A class that fares worse.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StarvedWorkflow {
    /// Its tasks wait longer, in seconds.
    Waits { class: Arc<str>, its: f64, others: f64 },
    /// Fewer of its tasks are kept: shares.
    Cut { class: Arc<str>, its: f64, others: f64 },
}

impl Average {
    fn add(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        self.value += (value - self.value) / f64::from(self.count.min(REACH));
    }

    const fn known(&self) -> Option<f64> {
        if self.count >= MIN_TASKS { Some(self.value) } else { None }
    }
}

impl WorkflowFairness {
    pub(super) const fn new(factor: Option<f64>) -> Self {
        Self { factor, known: BTreeMap::new() }
    }

    pub(super) fn waited(&mut self, class: &Arc<str>, waited: Duration) {
        if let Some(class) = self.class(class) {
            class.wait.add(waited.as_secs_f64());
        }
    }

    pub(super) fn ended(&mut self, class: &Arc<str>, is_kept: bool) {
        if let Some(class) = self.class(class) {
            class.kept.add(f64::from(u8::from(is_kept)));
        }
    }

    fn class(&mut self, class: &Arc<str>) -> Option<&mut Class> {
        self.factor?;
        if !self.known.contains_key(class) {
            if self.known.len() >= CLASSES {
                return None;
            }
            self.known.insert(Arc::clone(class), Class::default());
        }
        self.known.get_mut(class)
    }

    /// Returns a class that is starved, if there is one. While the alarm is raised it takes less.
    pub(super) fn starved(&self, is_raised: bool) -> Option<StarvedWorkflow> {
        let factor = self.factor? * if is_raised { CLEARLY } else { 1.0 };
        if self.known.len() < 2 {
            return None;
        }
        let waits = |class: &Class| class.wait.known();
        let kept = |class: &Class| class.kept.known();
        let (all_waits, all_kept) = (self.all(waits), self.all(kept));
        self.known.iter().find_map(|(class, fares)| {
            if let Some((its, others)) = beside(waits(fares), all_waits)
                && its > factor * others.max(SHORT)
            {
                return Some(StarvedWorkflow::Waits { class: Arc::clone(class), its, others });
            }
            let (its, others) = beside(kept(fares), all_kept)?;
            let is_cut = its * factor < others;
            is_cut.then(|| StarvedWorkflow::Cut { class: Arc::clone(class), its, others })
        })
    }

    /// The sum over all classes that can be judged, and their number.
    fn all(&self, look: impl Fn(&Class) -> Option<f64>) -> (f64, u32) {
        let values = self.known.values().filter_map(look);
        values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1))
    }
}

/// How one class fares, and the mean over all others.
fn beside(its: Option<f64>, (sum, count): (f64, u32)) -> Option<(f64, f64)> {
    let (its, others) = (its?, count.checked_sub(1).filter(|others| *others > 0)?);
    Some((its, (sum - its) / f64::from(others)))
}
