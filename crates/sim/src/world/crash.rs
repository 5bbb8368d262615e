//! Crash and restart of the coordinator from the ledger.
//!
//! The core, the held actions and the end of the ledger are lost; the sink stays. Runners continue
//! for a while and send reports to the next coordinator. Requests without a response are sent anew.

use std::time::Duration;

use rollway_core::{Input, LedgerRecord, Request};

use super::{SimWorld, WorldEvent};
use crate::checkers::Checkers;
use crate::faults::Fault;
use crate::process::{ProcessState, RunnerKey};

/// Maximum number of crashes; labels of attempts must remain exact.
const MAX_CRASHES: u32 = 4;

impl SimWorld {
    /// Appends a record and plans its write.
    pub(super) fn append(&mut self, record: LedgerRecord) {
        // Crashes around a delivery and a close are the most interesting.
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
            self.rng.spread(latency, self.model.config.delivery_timeout * 2)
        } else {
            self.rng.spread(latency / 8, latency * 4)
        };
        self.plan(wait, WorldEvent::Written);
    }

    pub(super) fn written(&mut self) {
        self.ledger.written();
        self.release();
        self.write();
    }

    pub(super) fn crash_if_due(&mut self) {
        let due = std::mem::take(&mut self.crashing);
        let may = self.model.config.ledger && self.crashes < MAX_CRASHES && !self.faults_ended;
        if !due || !may || self.violation.is_some() {
            return;
        }
        self.crashes += 1;
        // An unknown part of the records beyond the durable ones survives.
        let (safe, all) = self.ledger.reach();
        let left = self.rng.between(safe as u64, all as u64) as usize;
        self.ledger.crash(left);
        self.coverage.crashed(self.subject.core());
        self.checkers.crashed(&self.ledger);
        self.subject.restart();
        self.model = self.model.begin_anew(&self.ledger);
        self.alarm = None;
        self.orphan_runners();
        for record in self.ledger.durable_records() {
            if self.strikes(Fault::RecordedTwice) {
                self.step(Input::Restore(record.clone()));
            }
            self.step(Input::Restore(record));
        }
        self.check(Checkers::restored);
        self.send_world_request(Request::Start);
        self.users_begin_anew();
    }

    fn orphan_runners(&mut self) {
        let living = |state| matches!(state, ProcessState::Starting | ProcessState::Alive);
        let orphans: Vec<RunnerKey> = (self.processes.iter())
            .filter(|(_, process)| living(process.state))
            .map(|(at, _)| at)
            .collect();
        for at in orphans {
            let wait = self.rng.spread(Duration::from_millis(1), Duration::from_secs(20));
            self.plan(wait, WorldEvent::Killed(at));
        }
    }
}
