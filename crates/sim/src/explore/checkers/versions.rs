//! Versions never decrease: not in the servers, and not in the progress of an explorer.

use std::collections::BTreeMap;

use rollway_core::explore::{PlanInput, SyncResult};

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};

#[derive(Debug, Default)]
pub(super) struct Versions {
    latest: BTreeMap<usize, u64>,
}

impl ExploreChecker for Versions {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let latest = self.latest.entry(ctx.at).or_default();
        let version = match seen {
            ExploreEvent::Applied(PlanInput::Loaded(version))
            | ExploreEvent::Applied(PlanInput::Synced(SyncResult::Version(version)))
            | ExploreEvent::Applied(PlanInput::Synced(SyncResult::TrainerDone(version))) => {
                *version
            }
            ExploreEvent::Started { version } | ExploreEvent::Loaded { version } => {
                require!(version >= latest, "version {version} comes after {latest}");
                return Ok(());
            }
            ExploreEvent::Settled => {
                let checkpoint = ctx.explorer().checkpoint.version;
                require!(
                    checkpoint == *latest,
                    "version {latest} was applied, and {checkpoint} was saved"
                );
                return Ok(());
            }
            _ => return Ok(()),
        };
        require!(version >= *latest, "version {version} is applied after {latest}");
        *latest = version;
        Ok(())
    }
}
