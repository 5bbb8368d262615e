//! The links between the core and its runners: what is said arrives in order, unless it is late,
//! lost, doubled or overtaken.

use std::time::Duration;

use rollway_core::{Incarnation, Input, RunOutput, RunnerId, RunnerReport};

use super::{RunnerOrder, SimWorld, WorldEvent};
use crate::faults::Fault;
use crate::process::Cut;

impl SimWorld {
    /// A runner says something, if it can be heard.
    pub(super) fn say(&mut self, runner: RunnerId, life: Incarnation, report: RunnerReport) {
        let Some(process) = self.processes.get_mut(runner, life) else { return };
        match &mut process.cut {
            Some(Cut { backlog: Some(backlog), .. }) => backlog.push(report),
            Some(Cut { backlog: None, .. }) => {}
            None => self.transmit(runner, life, report),
        }
    }

    fn transmit(&mut self, runner: RunnerId, life: Incarnation, report: RunnerReport) {
        if self.strikes(Fault::ReportLost) {
            return;
        }
        let wait = self.delay(Fault::ReportLate);
        let overtakes = self.strikes(Fault::ReportOvertakes);
        let mut at = self.now.after(wait);
        if let Some(process) = self.processes.get_mut(runner, life)
            && !overtakes
        {
            at = at.max(process.reports_until);
            process.reports_until = at;
        }
        if self.strikes(Fault::ReportTwice) {
            let later = at.after(self.delay(Fault::ReportLate));
            self.queue.plan(later, WorldEvent::Report { runner, life, report: report.clone() });
        }
        self.queue.plan(at, WorldEvent::Report { runner, life, report });
    }

    /// Whoever watches runners says something about one; it has a link of its own.
    pub(super) fn notify(&mut self, runner: RunnerId, life: Incarnation, report: RunnerReport) {
        let noticed = self.dice.spread(Duration::from_millis(1), Duration::from_millis(300));
        let wait = noticed + self.delay(Fault::ReportLate);
        if self.strikes(Fault::ReportTwice) {
            let report = report.clone();
            self.plan(wait * 2, WorldEvent::Report { runner, life, report });
        }
        self.plan(wait, WorldEvent::Report { runner, life, report });
    }

    /// A report arrives. Whoever takes it in gives its payload a number.
    pub(super) fn report_arrives(
        &mut self,
        runner: RunnerId,
        life: Incarnation,
        mut report: RunnerReport,
    ) {
        if let RunnerReport::RunFinished {
            outcome: Ok(RunOutput { payload: Some(payload), .. }),
            ..
        } = &mut report
        {
            payload.id = self.next_payload();
        }
        self.step(Input::Report { runner, life, report });
    }

    /// An order goes out to a runner.
    pub(super) fn send(&mut self, runner: RunnerId, life: Incarnation, order: RunnerOrder) {
        if self.strikes(Fault::OrderLost) {
            return;
        }
        let wait = self.delay(Fault::OrderLate);
        let twice = self.strikes(Fault::OrderTwice);
        let Some(process) = self.processes.get_mut(runner, life) else { return };
        let at = self.now.after(wait).max(process.orders_until);
        process.orders_until = at;
        if twice {
            // The copy may overtake what comes after it, or be overtaken.
            let later = at.after(self.delay(Fault::OrderLate));
            self.queue.plan(later, WorldEvent::Order { runner, life, order: order.clone() });
        }
        self.queue.plan(at, WorldEvent::Order { runner, life, order });
    }

    fn delay(&mut self, late: Fault) -> Duration {
        let latency = self.shape.latency;
        let usual = self.dice.spread(latency / 8, latency * 2);
        if self.strikes(late) {
            usual + self.dice.spread(latency * 4, self.book.config.max_timeout)
        } else {
            usual
        }
    }
}
