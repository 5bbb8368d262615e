//! Waits of explorers for weights, and their outcomes.

use std::time::Duration;

use rollway_core::Time;
use rollway_core::explore::{PlanInput, PlanStyle, SyncResult};
use rollway_core::sync::{WaitOutcome as Waited, WeightWait};

use super::{
    Around, ExploreEvent, ExploreWorld, ExploreWorldEvent, ProcessEnd, WaitResult, waited_kind,
};
use crate::explore::process::OpenWait;

impl ExploreWorld {
    /// Begins a wait for weights; `began` is the start of the first of consecutive waits.
    pub(super) fn wait(&mut self, at: usize, at_least: u64, began: Time) {
        let factor = if self.has_bug(Around::LongTimeout) { 2 } else { 1 };
        let explorer = &mut self.explorers[at];
        let Some(process) = &mut explorer.process else { return };
        let style = self.options.plan_config.style;
        let request = WeightWait {
            explorer: explorer.name.clone(),
            current: explorer.version,
            at_least,
            publish_now: matches!(style, PlanStyle::ExplorerDriven | PlanStyle::FullyAsync),
            timeout: self.options.sync_timeout.saturating_sub(self.now.since(began)) * factor,
            waited: self.now.since(began),
        };
        let wait_id = self.sync.wait(self.now, request);
        process.wait = Some(OpenWait { wait_id, began });
        self.handle_outcomes();
    }

    /// Begins a wait for the last weights: those of the explorer's own experiences while others
    /// continue, or until the trainer is done.
    pub(super) fn wait_to_close(&mut self, at: usize, began: Time) {
        let Some(process) = &self.explorers[at].process else { return };
        let expected = process.subject.plan().expected();
        let at_least = if self.sync.explorers_left() { u64::MAX } else { expected };
        self.wait(at, at_least, began);
    }

    /// Begins a concurrent wait for published weights.
    pub(super) fn watch(&mut self, at: usize) {
        let explorer = &mut self.explorers[at];
        let Some(process) = &mut explorer.process else { return };
        if process.watch.is_over || process.watch.wait_id.is_some() {
            return;
        }
        let request = WeightWait {
            explorer: explorer.name.clone(),
            current: process.watch.seen,
            at_least: 0,
            publish_now: false,
            timeout: self.options.sync_timeout,
            waited: Duration::ZERO,
        };
        process.watch.wait_id = Some(self.sync.wait(self.now, request));
        self.handle_outcomes();
    }

    /// Handles the outcomes of waits.
    pub(super) fn handle_outcomes(&mut self) {
        for (wait_id, outcome) in self.sync.outcomes() {
            for at in 0..self.explorers.len() {
                let Some(process) = &mut self.explorers[at].process else { continue };
                if process.watch.wait_id == Some(wait_id) {
                    process.watch.wait_id = None;
                    self.watched(at, &outcome);
                } else if let Some(wait) = process.wait.take_if(|wait| wait.wait_id == wait_id) {
                    self.waited(at, wait.began, &outcome);
                }
            }
        }
    }

    /// Handles the outcome of a concurrent wait. While the trainer waits itself, the wait is not
    /// repeated.
    fn watched(&mut self, at: usize, outcome: &Waited) {
        let Some(process) = &mut self.explorers[at].process else { return };
        let incarnation = process.incarnation;
        let published = match *outcome {
            Waited::New(version) => Some(version),
            Waited::TrainerDone(version) => version,
            Waited::NothingNew | Waited::TimedOut(_) => return,
            Waited::TrainerFailed(ref message) => {
                let message = message.clone();
                self.on_event(at, &ExploreEvent::Waited { began: self.now, outcome });
                return self.ends(at, ProcessEnd::TrainerFailed(message));
            }
        };
        let is_over = matches!(outcome, Waited::TrainerDone(_));
        process.watch.is_over = is_over;
        process.watch.seen = published.unwrap_or(process.watch.seen);
        if let Some(version) = published {
            self.later(ExploreWorldEvent::Input {
                at,
                incarnation,
                input: PlanInput::Published(version),
            });
        }
        if is_over {
            self.later(ExploreWorldEvent::Input { at, incarnation, input: PlanInput::TrainerDone });
        }
        self.watch(at);
    }

    fn waited(&mut self, at: usize, began: Time, outcome: &Waited) {
        let Some(incarnation) =
            self.explorers[at].process.as_ref().map(|process| process.incarnation)
        else {
            return;
        };
        self.coverage.add("wait", waited_kind(outcome), 1);
        self.on_event(at, &ExploreEvent::Waited { began, outcome });
        let result = match *outcome {
            Waited::New(version) => WaitResult { version: Some(version), done: false, began },
            Waited::NothingNew => WaitResult { version: None, done: false, began },
            Waited::TrainerDone(version) => WaitResult { version, done: true, began },
            Waited::TrainerFailed(_) if self.has_bug(Around::FailureIsEnd) => {
                WaitResult { version: None, done: true, began }
            }
            Waited::TrainerFailed(ref message) => {
                return self.ends(at, ProcessEnd::TrainerFailed(message.clone()));
            }
            Waited::TimedOut(ref message) => {
                return self.ends(at, ProcessEnd::TimedOut(message.clone()));
            }
        };
        self.later(ExploreWorldEvent::Loads { at, incarnation, result });
    }

    /// Loads the weights of a wait.
    pub(super) fn on_wait_result(&mut self, at: usize, incarnation: u64, result: WaitResult) {
        if self.is_struck(at) {
            return;
        }
        let version = self.load(at, result.version);
        let Some(process) = &self.explorers[at].process else { return };
        if process.closing && !result.done && self.sync.explorers_left() {
            // All explorers have closed: the trainer will publish its last version soon.
            return self.wait_to_close(at, result.began);
        }
        let known = process.subject.plan().progress().version;
        let result = match version {
            version if result.done => SyncResult::TrainerDone(version),
            version if version > known => SyncResult::Version(version),
            _ => SyncResult::NothingNew,
        };
        self.later(ExploreWorldEvent::Input { at, incarnation, input: PlanInput::Synced(result) });
    }
}
