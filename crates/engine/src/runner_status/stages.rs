//! What the runs of a runner in this process are at, in their own words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use rollway_core::RunId;

/// The longest name of a stage, in bytes.
const MAX_STAGE: usize = 200;

/// The stages of the runs that a runner executes. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct RunStages(Arc<Mutex<BTreeMap<RunId, Stage>>>);

/// A stage, and since when.
type Stage = (Arc<str>, SystemTime);

impl RunStages {
    /// A run is at something else.
    pub fn set(&self, run: RunId, stage: &str) {
        let stage = Arc::from(&stage[..stage.floor_char_boundary(MAX_STAGE)]);
        self.lock().insert(run, (stage, SystemTime::now()));
    }

    /// A run has ended.
    pub(crate) fn end(&self, run: RunId) {
        self.lock().remove(&run);
    }

    /// Nothing is executed any more.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the run that has been at something for longest.
    pub(crate) fn oldest(&self) -> Option<(RunId, Arc<str>, SystemTime)> {
        let stages = self.lock();
        let oldest = stages.iter().min_by_key(|(_, (_, since))| *since);
        oldest.map(|(run, (stage, since))| (*run, Arc::clone(stage), *since))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, Stage>> {
        self.0.lock()
    }
}
