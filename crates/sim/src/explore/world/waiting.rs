//! How explorers wait at the board, and what comes of it.

use std::time::Duration;

use rollway_core::Time;
use rollway_core::explore::{PlanInput, PlanStyle, SyncResult};
use rollway_core::sync::{WaitOutcome as Waited, WeightWait};

use super::{Around, Came, ExploreEvent, ExploreWorld, ExploreWorldEvent, ProcessEnd, waited_kind};
use crate::explore::process::OpenWait;

impl ExploreWorld {
    /// Lets an explorer wait for weights; the first of the waits that follow each other began then.
    pub(super) fn wait(&mut self, at: usize, at_least: u64, began: Time) {
        let patience = if self.has_bug(Around::Patient) { 2 } else { 1 };
        let explorer = &mut self.explorers[at];
        let Some(process) = &mut explorer.process else { return };
        let style = self.options.pace.style;
        let want = WeightWait {
            explorer: explorer.name.clone(),
            have: explorer.version,
            at_least,
            demand: matches!(style, PlanStyle::ExplorerDriven | PlanStyle::FullyAsync),
            timeout: self.options.sync_timeout.saturating_sub(self.now.since(began)) * patience,
            waited: self.now.since(began),
        };
        let ask = self.board.wait(self.now, want);
        process.wait = Some(OpenWait { ask, began });
        self.answers();
    }

    /// Lets an explorer wait for the last weights: for what comes of its own experiences while
    /// others go on, or until the trainer is done.
    pub(super) fn wait_to_close(&mut self, at: usize, began: Time) {
        let Some(process) = &self.explorers[at].process else { return };
        let expected = process.subject.plan().expected();
        let at_least = if self.board.explorers_left() { u64::MAX } else { expected };
        self.wait(at, at_least, began);
    }

    /// Lets an explorer see what the trainer does, where nobody stops to ask.
    pub(super) fn watch(&mut self, at: usize) {
        let explorer = &mut self.explorers[at];
        let Some(process) = &mut explorer.process else { return };
        if process.watch.is_over || process.watch.ask.is_some() {
            return;
        }
        let want = WeightWait {
            explorer: explorer.name.clone(),
            have: process.watch.seen,
            at_least: 0,
            demand: false,
            timeout: self.options.sync_timeout,
            waited: Duration::ZERO,
        };
        process.watch.ask = Some(self.board.wait(self.now, want));
        self.answers();
    }

    /// Hands out what waits came to.
    pub(super) fn answers(&mut self) {
        for (ask, outcome) in self.board.outcomes() {
            for at in 0..self.explorers.len() {
                let Some(process) = &mut self.explorers[at].process else { continue };
                if process.watch.ask == Some(ask) {
                    process.watch.ask = None;
                    self.watched(at, &outcome);
                } else if let Some(wait) = process.wait.take_if(|wait| wait.ask == ask) {
                    self.waited(at, wait.began, &outcome);
                }
            }
        }
    }

    /// An explorer sees what the trainer did. While that waits itself, there is nothing to see
    /// before something else happens.
    fn watched(&mut self, at: usize, outcome: &Waited) {
        let Some(process) = &mut self.explorers[at].process else { return };
        let life = process.life;
        let published = match *outcome {
            Waited::New(version) => Some(version),
            Waited::TrainerDone(version) => version,
            Waited::NothingNew | Waited::TimedOut(_) => return,
            Waited::TrainerFailed(ref words) => {
                let words = words.clone();
                self.see(at, &ExploreEvent::Waited { began: self.now, outcome });
                return self.ends(at, ProcessEnd::TrainerFailed(words));
            }
        };
        let is_over = matches!(outcome, Waited::TrainerDone(_));
        process.watch.is_over = is_over;
        process.watch.seen = published.unwrap_or(process.watch.seen);
        if let Some(version) = published {
            self.later(ExploreWorldEvent::Heard { at, life, fact: PlanInput::Published(version) });
        }
        if is_over {
            self.later(ExploreWorldEvent::Heard { at, life, fact: PlanInput::TrainerDone });
        }
        self.watch(at);
    }

    /// An explorer's wait is over.
    fn waited(&mut self, at: usize, began: Time, outcome: &Waited) {
        let Some(life) = self.explorers[at].process.as_ref().map(|process| process.life) else {
            return;
        };
        self.coverage.add("wait", waited_kind(outcome), 1);
        self.see(at, &ExploreEvent::Waited { began, outcome });
        let came = match *outcome {
            Waited::New(version) => Came { version: Some(version), done: false, began },
            Waited::NothingNew => Came { version: None, done: false, began },
            Waited::TrainerDone(version) => Came { version, done: true, began },
            Waited::TrainerFailed(_) if self.has_bug(Around::FailureIsEnd) => {
                Came { version: None, done: true, began }
            }
            Waited::TrainerFailed(ref words) => {
                return self.ends(at, ProcessEnd::TrainerFailed(words.clone()));
            }
            Waited::TimedOut(ref words) => {
                return self.ends(at, ProcessEnd::TimedOut(words.clone()));
            }
        };
        self.later(ExploreWorldEvent::Loads { at, life, came });
    }

    /// An explorer takes what a wait came to.
    pub(super) fn came(&mut self, at: usize, life: u64, came: Came) {
        if self.is_struck(at) {
            return;
        }
        let version = self.load(at, came.version);
        let Some(process) = &self.explorers[at].process else { return };
        if process.closing && !came.done && self.board.explorers_left() {
            // Everybody has closed: the trainer will be done soon, and have a last word.
            return self.wait_to_close(at, came.began);
        }
        let known = process.subject.plan().progress().version;
        let exchange = match version {
            version if came.done => SyncResult::TrainerDone(version),
            version if version > known => SyncResult::Version(version),
            _ => SyncResult::NothingNew,
        };
        self.later(ExploreWorldEvent::Heard { at, life, fact: PlanInput::Synced(exchange) });
    }
}
