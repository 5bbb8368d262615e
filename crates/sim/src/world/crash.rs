//! The end of a coordinator without a warning, and the next one, which knows what the ledger has.
//!
//! The core, what it held back and the end of the ledger are gone; the sink stays. Runners are
//! orphans: they go on for a while and say so to whoever listens. Whoever was not answered asks
//! anew.

use std::time::Duration;

use rollway_core::{Incarnation, Input, LedgerRecord, Request, RunnerId};

use super::{SimWorld, WorldEvent};
use crate::faults::Fault;
use crate::process::ProcessState;

/// More would not show anything new, and labels of attempts have to be exact.
const MAX_CRASHES: u32 = 4;

impl SimWorld {
    /// Adds a record to the ledger, and sees to it that it will be safe.
    pub(super) fn append(&mut self, record: LedgerRecord) {
        // The moments around a delivery and an end are the ones of interest.
        let crucial =
            !matches!(record, LedgerRecord::RunEnded { .. } | LedgerRecord::Submitted { .. });
        self.crashing |= crucial && self.strikes(Fault::CoordinatorCrash);
        self.ledger.append(record);
        self.write();
    }

    fn write(&mut self) {
        if !self.ledger.write() {
            return;
        }
        let latency = self.shape.latency;
        let wait = if self.strikes(Fault::LedgerSlow) {
            self.dice.spread(latency, self.book.config.delivery_timeout * 2)
        } else {
            self.dice.spread(latency / 8, latency * 4)
        };
        self.plan(wait, WorldEvent::Written);
    }

    pub(super) fn written(&mut self) {
        self.ledger.written();
        self.release();
        self.write();
    }

    /// Ends the coordinator if something has decided so, and begins anew.
    pub(super) fn crash_if_due(&mut self) {
        let due = std::mem::take(&mut self.crashing);
        let may = self.book.config.ledger && self.crashes < MAX_CRASHES && !self.healed;
        if !due || !may || self.violation.is_some() {
            return;
        }
        self.crashes += 1;
        // Of what was not known to be safe, nobody can say how much is.
        let (safe, all) = self.ledger.reach();
        let left = self.dice.between(safe as u64, all as u64) as usize;
        self.ledger.crash(left);
        self.coverage.crashed(self.subject.core());
        self.checkers.crashed(&self.ledger);
        self.subject.begin_anew();
        self.book = self.book.begin_anew(&self.ledger);
        self.alarm = None;
        self.orphan_runners();
        for record in self.ledger.durable_records() {
            if self.strikes(Fault::RecordedTwice) {
                self.step(Input::Restore(record.clone()));
            }
            self.step(Input::Restore(record));
        }
        self.see_restored();
        self.ask(None, Request::Start);
        self.users_begin_anew();
    }

    fn orphan_runners(&mut self) {
        let living = |state| matches!(state, ProcessState::Starting | ProcessState::Alive);
        let orphans: Vec<(RunnerId, Incarnation)> = (self.processes.iter())
            .filter(|(.., process)| living(process.state))
            .map(|(runner, life, _)| (runner, life))
            .collect();
        for (runner, life) in orphans {
            let wait = self.dice.spread(Duration::from_millis(1), Duration::from_secs(20));
            self.plan(wait, WorldEvent::Killed { runner, life });
        }
    }
}
