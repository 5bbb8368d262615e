//! No wait exceeds its timeout.

use super::{ExploreChecker, ExploreContext, ExploreEvent};
use crate::checkers::{CheckVerdict, require};

#[derive(Debug)]
pub(super) struct Waits;

impl ExploreChecker for Waits {
    fn on_event(&mut self, ctx: &ExploreContext<'_>, seen: &ExploreEvent<'_>) -> CheckVerdict {
        let most = ctx.options.sync_timeout;
        match *seen {
            ExploreEvent::Waited { began, outcome } => {
                let waited = ctx.now.since(began);
                require!(waited <= most, "{waited:?} until {outcome:?}, and {most:?} were agreed");
            }
            ExploreEvent::Settled => {
                let Some(process) = &ctx.explorer().process else { return Ok(()) };
                let Some(wait) = process.wait else { return Ok(()) };
                let waiting = ctx.now.since(wait.began);
                require!(waiting <= most, "still waiting after {waiting:?} of {most:?}");
            }
            _ => {}
        }
        Ok(())
    }
}
