//! Versions never go backwards: not in the servers, and not in what an explorer believes.

use std::collections::BTreeMap;

use rollway_core::explore::{PlanInput, SyncResult};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};

/// No way back.
#[derive(Debug, Default)]
pub(super) struct Versions {
    told: BTreeMap<usize, u64>,
}

impl ExploreChecker for Versions {
    fn name(&self) -> &'static str {
        "versions"
    }

    fn see(&mut self, scene: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let told = self.told.entry(scene.at).or_default();
        let version = match seen {
            ExploreEvent::Told(PlanInput::Loaded(version))
            | ExploreEvent::Told(PlanInput::Synced(SyncResult::Version(version)))
            | ExploreEvent::Told(PlanInput::Synced(SyncResult::TrainerDone(version))) => *version,
            ExploreEvent::Started { version } | ExploreEvent::Loaded { version } => {
                require!(version >= told, "version {version} comes after {told}");
                return Ok(());
            }
            ExploreEvent::Settled => {
                let kept = scene.explorer().kept.version;
                require!(kept == *told, "version {told} came, and {kept} was kept");
                return Ok(());
            }
            _ => return Ok(()),
        };
        require!(version >= *told, "version {version} is told after {told}");
        *told = version;
        Ok(())
    }
}
