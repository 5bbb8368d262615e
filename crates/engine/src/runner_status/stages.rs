//! Stages of the runs of a local runner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use rollway_core::RunId;

/// Maximum length of a stage, in bytes.
const MAX_STAGE: usize = 200;

/// Stages of the current runs of a runner. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct RunStages(Arc<Mutex<BTreeMap<RunId, Stage>>>);

/// A stage and its begin.
type Stage = (Arc<str>, SystemTime);

impl RunStages {
    pub fn set(&self, run: RunId, stage: &str) {
        let stage = Arc::from(&stage[..stage.floor_char_boundary(MAX_STAGE)]);
        self.lock().insert(run, (stage, SystemTime::now()));
    }

    pub(crate) fn end(&self, run: RunId) {
        self.lock().remove(&run);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the run that has been longest in its stage.
    pub(crate) fn oldest(&self) -> Option<(RunId, Arc<str>, SystemTime)> {
        let stages = self.lock();
        let oldest = stages.iter().min_by_key(|(_, (_, since))| *since);
        oldest.map(|(run, (stage, since))| (*run, Arc::clone(stage), *since))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RunId, Stage>> {
        self.0.lock()
    }
}
