//! Nobody waits at the board for longer than was agreed.

use super::{Checker, Scene, Seen};
use crate::checkers::{Verdict, require};

/// No wait without an end.
#[derive(Debug)]
pub(super) struct Waits;

impl Checker for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }

    fn see(&mut self, scene: &Scene<'_>, seen: &Seen<'_>) -> Verdict {
        let most = scene.options.sync_timeout;
        match *seen {
            Seen::Waited { began, outcome } => {
                let waited = scene.now.since(began);
                require!(waited <= most, "{waited:?} until {outcome:?}, and {most:?} were agreed");
            }
            Seen::Settled => {
                let Some(process) = &scene.explorer().process else { return Ok(()) };
                let Some(wait) = process.wait else { return Ok(()) };
                let waiting = scene.now.since(wait.began);
                require!(waiting <= most, "still waiting after {waiting:?} of {most:?}");
            }
            _ => {}
        }
        Ok(())
    }
}
