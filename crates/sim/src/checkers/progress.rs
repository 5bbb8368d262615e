//! No runner is idle while there is work for it, and once nothing goes wrong any more everything
//! comes to an end. The second half is watched by the world, which knows the time it takes.

use super::dispatch_order::fresh_left;
use super::limits::{crowded, room};
use super::{CheckContext, CheckVerdict, Checker, PROGRESS, require};
use crate::reference_model::{Phase, Pool};

/// Looks for idle hands.
#[derive(Debug)]
pub(super) struct Progress;

impl Checker for Progress {
    fn name(&self) -> &'static str {
        PROGRESS
    }

    fn settled(&mut self, scene: &CheckContext<'_>) -> CheckVerdict {
        if scene.book.pool != Pool::Running {
            return Ok(());
        }
        let idle = scene.book.slots.iter().find(|(_, slot)| slot.phase == Phase::Idle);
        let Some((idle, _)) = idle else { return Ok(()) };
        if crowded(scene) {
            return Ok(());
        }
        for key in scene.book.active.values() {
            let waits = room(scene, *key) && fresh_left(scene, *key) > 0;
            require!(!waits, "{idle} is idle while {key} waits");
        }
        Ok(())
    }
}
