//! Number of occurrences of inputs, actions, responses, faults and runner transitions, in one world
//! or many. It shows whether the random draws reach every branch.

use std::collections::BTreeMap;
use std::fmt;

use rollway_core::{
    Action, AttemptCancelReason, CancelReason, Core, CoreConfig, DeadlineReason, DropReason,
    FailureKind, IgnoreReason, Input, RunnerId, RunnerState,
};

use crate::faults::FaultPlan;
use crate::trace::{action_kind, answer_kind, input_kind, record_kind, report_kind};

/// Names by heading. The core and the faults list further names themselves.
const COVERAGE_ITEMS: Names = &[
    ("report", "ready alive start_failed lost began finished ended"),
    (
        "action",
        "start_runner stop_runner start_attempt cancel_attempt drop_payload deliver answer record \
         forget_tasks",
    ),
    ("record", "submitted run_ended cut given_up offered ended"),
    ("recorded", "submitted run_ended cut given_up offered ended"),
    (
        "answer",
        "scheduled submitted collected discarded finalized aborted run_cancelled no_run_cancelled \
         all_ended started stopped refused:already_active refused:not_registered \
         refused:wrong_kind refused:not_collectable refused:no_runs refused:limit \
         refused:not_started refused:stopped refused:timed_out refused:cut_short \
         refused:still_busy refused:aborted refused:batch_failed refused:sink_failed \
         refused:too_few_succeeded",
    ),
    ("attempt", "started shortened"),
    ("wake", "runner silence waiter retry elsewhere delivery stop scaling nothing"),
    ("cancel", "aborted over_rollout timed_out batch_failed requested timeout not_begun"),
];

/// Possible transitions of a runner in one step.
const TRANSITIONS: Names = &[
    ("starting", "idle busy broken stopped"),
    ("idle", "busy starting stopped"),
    ("busy", "idle cancelling starting stopped"),
    ("cancelling", "idle busy starting stopped"),
    ("broken", "starting stopped"),
    ("stopped", "starting"),
];

/// Names by heading, separated by spaces.
type Names = &'static [(&'static str, &'static str)];

/// Counts by heading and name.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// Names that can occur.
    known: Names,
    states: Names,
    counts: BTreeMap<(&'static str, &'static str), u64>,
    /// Transitions of runners: from, cause, to.
    transitions: BTreeMap<(&'static str, &'static str, &'static str), u64>,
    runners: BTreeMap<RunnerId, &'static str>,
    wake: Option<DeadlineReason>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self { states: TRANSITIONS, ..Self::of(COVERAGE_ITEMS) }
    }
}

impl Coverage {
    /// Returns empty counts of these names.
    pub(crate) const fn of(known: Names) -> Self {
        Self {
            known,
            states: &[],
            counts: BTreeMap::new(),
            transitions: BTreeMap::new(),
            runners: BTreeMap::new(),
            wake: None,
        }
    }

    /// Records the next deadline before a step.
    pub fn before(&mut self, core: &Core) {
        self.wake = core.next_deadline().map(|deadline| deadline.reason);
    }

    pub fn step(&mut self, input: &Input, actions: &[Action], core: &Core, config: &CoreConfig) {
        self.add("input", input_kind(input), 1);
        let cause = match input {
            Input::Report { report, .. } => report_kind(report),
            Input::TimePassed => self.wake.map_or("nothing", wake_kind),
            _ => input_kind(input),
        };
        match input {
            Input::Report { .. } => self.add("report", cause, 1),
            Input::TimePassed => self.add("wake", cause, 1),
            Input::Restore(record) => self.add("recorded", record_kind(record), 1),
            _ => {}
        }
        for action in actions {
            self.add("action", action_kind(action), 1);
            match action {
                Action::Respond { answer, .. } => self.add("answer", answer_kind(answer), 1),
                Action::AppendRecord(record) => self.add("record", record_kind(record), 1),
                Action::StartAttempt { timeout, .. } if *timeout < config.max_timeout => {
                    self.add("attempt", "shortened", 1);
                }
                Action::CancelAttempt { reason, .. } => {
                    self.add("cancel", cancel_kind(*reason), 1);
                }
                _ => {}
            }
        }
        for view in core.runners() {
            let state = view.state.name();
            let before = self.runners.insert(view.runner, state);
            let from = before.unwrap_or(RunnerState::Stopped.name());
            if from != state {
                *self.transitions.entry((from, cause, state)).or_default() += 1;
            }
        }
    }

    /// Counts the faults that occurred.
    pub fn faults(&mut self, faults: &FaultPlan) {
        for (fault, occurrences) in faults.occurrences() {
            self.add("fault", fault.name(), occurrences);
        }
    }

    /// Adds the counters of a core that crashed.
    pub fn crashed(&mut self, core: &Core) {
        self.counters(core);
        self.runners.clear();
    }

    pub fn counters(&mut self, core: &Core) {
        let counters = core.counters();
        for why in IgnoreReason::ALL {
            self.add("disbelief", why.name(), counters.ignored_reports[*why]);
        }
        for reason in DropReason::ALL {
            self.add("drop", reason.name(), counters.payloads_dropped[*reason]);
        }
        for kind in FailureKind::ALL {
            self.add("run failed", kind.name(), counters.runs.failed[*kind]);
            self.add("retry", kind.name(), counters.retries[*kind]);
        }
        for reason in CancelReason::ALL {
            self.add("run cancelled", reason.name(), counters.runs.cancelled[*reason]);
        }
        self.add("run", "submitted", counters.runs.submitted);
        self.add("run", "succeeded", counters.runs.succeeded);
        self.add("attempt", "started", counters.attempts_started);
    }

    pub fn merge(&mut self, other: &Self) {
        for (key, count) in &other.counts {
            *self.counts.entry(*key).or_default() += count;
        }
        for (key, count) in &other.transitions {
            *self.transitions.entry(*key).or_default() += count;
        }
    }

    /// Returns the names that never occurred.
    pub fn missing(&self) -> Vec<String> {
        let zero = self.counts.iter().filter(|(_, count)| **count == 0);
        let mut missing: Vec<String> =
            zero.map(|((heading, name), _)| format!("{heading} {name}")).collect();
        for (heading, names) in self.known {
            let never = |name: &&str| !self.counts.keys().any(|key| *key == (*heading, *name));
            let names = names.split(' ').filter(never);
            missing.extend(names.map(|name| format!("{heading} {name}")));
        }
        for (from, states) in self.states {
            for to in states.split(' ') {
                let mut seen = self.transitions.keys();
                if !seen.any(|(before, _, after)| before == from && *after == to) {
                    missing.push(format!("runner {from} -> {to}"));
                }
            }
        }
        missing
    }

    pub(crate) fn add(&mut self, heading: &'static str, name: &'static str, count: u64) {
        *self.counts.entry((heading, name)).or_default() += count;
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((heading, name), count) in &self.counts {
            writeln!(f, "{heading:<14} {name:<28} {count:>12}")?;
        }
        for ((from, cause, to), count) in &self.transitions {
            writeln!(f, "{:<14} {from:<10} {cause:<14} -> {to:<10} {count:>5}", "runner")?;
        }
        Ok(())
    }
}

const fn wake_kind(reason: DeadlineReason) -> &'static str {
    match reason {
        DeadlineReason::Runner(_) => "runner",
        DeadlineReason::HeartbeatTimeout(_) => "silence",
        DeadlineReason::Waiter(_) => "waiter",
        DeadlineReason::Retry(_) => "retry",
        DeadlineReason::AnyRunner => "elsewhere",
        DeadlineReason::Delivery(_) => "delivery",
        DeadlineReason::Stop => "stop",
        DeadlineReason::Scaling => "scaling",
    }
}

const fn cancel_kind(reason: AttemptCancelReason) -> &'static str {
    match reason {
        AttemptCancelReason::Runs(reason) => reason.name(),
        AttemptCancelReason::Timeout => "timeout",
        AttemptCancelReason::BeginTimeout => "not_begun",
    }
}
