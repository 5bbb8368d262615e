//! No runner is idle while runs wait, and after the last fault everything ends. The world itself
//! checks the second half, which needs the time that it takes.

use super::dispatch_order::fresh_left;
use super::limits::{crowded, room};
use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{Phase, Pool};

#[derive(Debug)]
pub(super) struct Progress;

impl Checker for Progress {
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
