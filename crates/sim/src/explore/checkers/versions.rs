//! Versions never go backwards: not in the servers, and not in what an explorer believes.

use std::collections::BTreeMap;

use rollway_core::explore::{Exchange, Fact};

use super::{Checker, Scene, Seen};
use crate::checkers::{Verdict, require};

/// No way back.
#[derive(Debug, Default)]
pub(super) struct Versions {
    told: BTreeMap<usize, u64>,
}

impl Checker for Versions {
    fn name(&self) -> &'static str {
        "versions"
    }

    fn see(&mut self, scene: &Scene<'_>, seen: &Seen<'_>) -> Verdict {
        let told = self.told.entry(scene.at).or_default();
        let version = match seen {
            Seen::Told(Fact::Loaded(version))
            | Seen::Told(Fact::Synced(Exchange::Version(version)))
            | Seen::Told(Fact::Synced(Exchange::TrainerDone(version))) => *version,
            Seen::Started { version } | Seen::Loaded { version } => {
                require!(version >= told, "version {version} comes after {told}");
                return Ok(());
            }
            Seen::Settled => {
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
