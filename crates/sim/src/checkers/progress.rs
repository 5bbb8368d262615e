//! No runner is idle while runs wait, and after the last fault everything ends. The world itself
//! checks the second half, which needs the time that it takes.

use super::dispatch_order::fresh_left;
use super::limits::{crowded, room};
use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::{Phase, Pool};

#[derive(Debug)]
pub(super) struct Progress;

impl Checker for Progress {
    fn settled(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        if ctx.model.pool != Pool::Running {
            return Ok(());
        }
        let idle = ctx.model.slots.iter().find(|(_, slot)| slot.phase == Phase::Idle);
        let Some((idle, _)) = idle else { return Ok(()) };
        if crowded(ctx) {
            return Ok(());
        }
        for key in ctx.model.active.values() {
            let waits = room(ctx, *key) && fresh_left(ctx, *key) > 0;
            require!(!waits, "{idle} is idle while {key} waits");
        }
        Ok(())
    }
}
