//! Connections between the core and its runners: messages arrive in order, unless they are late,
//! lost, repeated or reordered.

use std::time::Duration;

use rollway_core::{Input, RunOutput, RunnerReport};

use super::{RunnerOrder, SimWorld, WorldEvent};
use crate::faults::Fault;
use crate::process::{Cut, RunnerKey};

impl SimWorld {
    /// Sends a report of a runner, if it is connected.
    pub(super) fn send_report(&mut self, at: RunnerKey, report: RunnerReport) {
        let Some(process) = self.processes.get_mut(at) else { return };
        match &mut process.cut {
            Some(Cut { backlog: Some(backlog), .. }) => backlog.push(report),
            Some(Cut { backlog: None, .. }) => {}
            None => self.transmit(at, report),
        }
    }

    fn transmit(&mut self, at: RunnerKey, report: RunnerReport) {
        if self.strikes(Fault::ReportLost) {
            return;
        }
        let wait = self.delay(Fault::ReportLate);
        let overtakes = self.strikes(Fault::ReportOvertakes);
        let mut arrival = self.now.after(wait);
        if let Some(process) = self.processes.get_mut(at)
            && !overtakes
        {
            arrival = arrival.max(process.reports_until);
            process.reports_until = arrival;
        }
        if self.strikes(Fault::ReportTwice) {
            let later = arrival.after(self.delay(Fault::ReportLate));
            self.queue.plan(later, WorldEvent::Report(at, report.clone()));
        }
        self.queue.plan(arrival, WorldEvent::Report(at, report));
    }

    /// Sends a report of a runner's supervisor, which has its own connection.
    pub(super) fn notify(&mut self, at: RunnerKey, report: RunnerReport) {
        let noticed = self.rng.spread(Duration::from_millis(1), Duration::from_millis(300));
        let wait = noticed + self.delay(Fault::ReportLate);
        if self.strikes(Fault::ReportTwice) {
            let report = report.clone();
            self.plan(wait * 2, WorldEvent::Report(at, report));
        }
        self.plan(wait, WorldEvent::Report(at, report));
    }

    /// Applies a report. The receiver numbers its payload.
    pub(super) fn report_arrives(
        &mut self,
        (runner, incarnation): RunnerKey,
        mut report: RunnerReport,
    ) {
        if let RunnerReport::RunFinished {
            outcome: Ok(RunOutput { payload: Some(payload), .. }),
            ..
        } = &mut report
        {
            payload.id = self.next_payload();
        }
        self.step(Input::Report { runner, incarnation, report });
    }

    pub(super) fn send(&mut self, at: RunnerKey, order: RunnerOrder) {
        if self.strikes(Fault::OrderLost) {
            return;
        }
        let wait = self.delay(Fault::OrderLate);
        let twice = self.strikes(Fault::OrderTwice);
        let Some(process) = self.processes.get_mut(at) else { return };
        let arrival = self.now.after(wait).max(process.orders_until);
        process.orders_until = arrival;
        if twice {
            // The copy may arrive before later ones.
            let later = arrival.after(self.delay(Fault::OrderLate));
            self.queue.plan(later, WorldEvent::Order(at, order.clone()));
        }
        self.queue.plan(arrival, WorldEvent::Order(at, order));
    }

    fn delay(&mut self, late: Fault) -> Duration {
        let latency = self.shape.latency;
        let usual = self.rng.spread(latency / 8, latency * 2);
        if self.strikes(late) {
            usual + self.rng.spread(latency * 4, self.model.config.max_timeout)
        } else {
            usual
        }
    }
}
