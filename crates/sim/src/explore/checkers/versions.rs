//! Versions never decrease: not in the servers, and not in the progress of an explorer.

use std::collections::BTreeMap;

use rollway_core::explore::{PlanInput, SyncResult};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};

#[derive(Debug, Default)]
pub(super) struct Versions {
    told: BTreeMap<usize, u64>,
}

impl ExploreChecker for Versions {
    fn see(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let told = self.told.entry(ctx.at).or_default();
        let version = match seen {
            ExploreEvent::Told(PlanInput::Loaded(version))
            | ExploreEvent::Told(PlanInput::Synced(SyncResult::Version(version)))
            | ExploreEvent::Told(PlanInput::Synced(SyncResult::TrainerDone(version))) => *version,
            ExploreEvent::Started { version } | ExploreEvent::Loaded { version } => {
                require!(version >= told, "version {version} comes after {told}");
                return Ok(());
            }
            ExploreEvent::Settled => {
                let kept = ctx.explorer().kept.version;
                require!(kept == *told, "version {told} was applied, and {kept} was saved");
                return Ok(());
            }
            _ => return Ok(()),
        };
        require!(version >= *told, "version {version} is applied after {told}");
        *told = version;
        Ok(())
    }
}
