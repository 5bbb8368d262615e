//! Planted bugs between the core and the world, to test the checkers.

mod action_bugs;
mod input_bugs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use rollway_core::metrics::Metrics;
use rollway_core::{
    Action, AttemptCancelReason, AttemptId, BatchKey, BatchResult, CancelReason, Core, CoreConfig,
    DeliveryOutcome, DropReason, GroupPolicy, Input, LedgerRecord, OnExhausted, Refusal, Request,
    Response, RunEnd, RunnerId, RunnerReport, ScalingBounds, Suspicion, TaskId, Time,
};

use crate::checkers::Checkers;
use crate::trace::TraceTarget;
use crate::{REPEAT, run};
use Bug::{
    Actions, Config, DropAction, DropInput, EditAction, EditInput, EditResult, Inputs,
    RepeatAction, RepeatInput,
};

/// A planted bug and the checker that must report it.
#[derive(Clone, Copy)]
pub struct Mutant {
    pub name: &'static str,
    pub checker: &'static str,
    bug: Bug,
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.checker)
    }
}

#[derive(Clone, Copy)]
enum Bug {
    Config(fn(&mut CoreConfig)),
    /// Replaces an input by others.
    Inputs(fn(&mut Memory, &Core, Input) -> Vec<Input>),
    EditInput(fn(&mut Memory, &Core, &mut Input)),
    DropInput(fn(&Input) -> bool),
    RepeatInput(fn(&Input) -> bool),
    /// Changes the actions of an input.
    Actions(fn(PendingActions<'_>)),
    EditAction(fn(&mut Action)),
    DropAction(fn(&Action) -> bool),
    /// Repeats the first such action.
    RepeatAction(fn(&Action) -> bool),
    /// Changes the results of finalized batches.
    EditResult(fn(&mut BatchResult)),
}

/// Actions of a core with a bug, before they are performed.
struct PendingActions<'a> {
    memory: &'a mut Memory,
    core: &'a Core,
    input: &'a Input,
    actions: &'a mut Vec<Action>,
}

/// State of a bug.
#[derive(Debug, Default)]
struct Memory {
    count: u64,
    attempts: BTreeMap<AttemptId, (BatchKey, TaskId)>,
    reported: BTreeSet<(AttemptId, u32)>,
    succeeded: BTreeSet<(BatchKey, TaskId, u32)>,
    cancelled: BTreeSet<(BatchKey, TaskId, u32)>,
    last_on: BTreeMap<(BatchKey, TaskId, u32), RunnerId>,
    held_back: Vec<Action>,
}

/// The core under test, with an optional bug.
pub struct CoreSubject {
    core: Core,
    config: CoreConfig,
    bug: Option<Bug>,
    memory: Memory,
}

impl fmt::Debug for CoreSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl CoreSubject {
    pub fn new(config: CoreConfig, mutant: Option<&Mutant>) -> Self {
        let bug = mutant.map(|mutant| mutant.bug);
        Self { core: new_core(&config, bug), config, bug, memory: Memory::default() }
    }

    /// Replaces the core after a crash.
    pub fn restart(&mut self) {
        self.config.epoch += 1;
        self.core = new_core(&self.config, self.bug);
        self.memory.held_back.clear();
    }

    pub const fn core(&self) -> &Core {
        &self.core
    }

    pub fn apply(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        let inputs = match self.bug {
            None | Some(Config(_)) => return self.core.apply(now, input, actions),
            Some(Inputs(replace)) => replace(&mut self.memory, &self.core, input.clone()),
            Some(EditInput(edit)) => {
                let mut edited = input.clone();
                edit(&mut self.memory, &self.core, &mut edited);
                vec![edited]
            }
            Some(DropInput(drops)) if drops(&input) => Vec::new(),
            Some(RepeatInput(repeats)) if repeats(&input) => vec![input.clone(); 2],
            Some(_) => vec![input.clone()],
        };
        for input in inputs {
            self.core.apply(now, input, actions);
        }
        match self.bug {
            Some(Actions(change)) => {
                let (memory, core) = (&mut self.memory, &self.core);
                change(PendingActions { memory, core, input: &input, actions });
            }
            Some(EditAction(edit)) => actions.iter_mut().for_each(edit),
            Some(DropAction(drops)) => actions.retain(|action| !drops(action)),
            Some(RepeatAction(repeats)) => {
                let again = actions.iter().find(|action| repeats(action)).cloned();
                actions.extend(again);
            }
            Some(EditResult(edit)) => {
                for action in actions {
                    if let Action::Respond { answer: Response::Finalized(result), .. } = action {
                        edit(Arc::make_mut(result));
                    }
                }
            }
            _ => {}
        }
    }
}

fn new_core(config: &CoreConfig, bug: Option<Bug>) -> Core {
    let mut config = config.clone();
    if let Some(Config(change)) = bug {
        change(&mut config);
    }
    Core::new(config)
}

/// Runs seeds with a planted bug until its checker reports it, at most `seeds_max`. Returns the
/// number of seeds and the message.
pub fn find_seed(mutant: &Mutant, first: u64, seeds_max: u64) -> Option<(u64, String)> {
    first_report(first, seeds_max, |seed| {
        if mutant.checker == REPEAT {
            return crate::repeats(seed, Some(mutant)).err();
        }
        let checkers = Checkers::only(mutant.checker);
        let result = run(seed, TraceTarget::Nowhere, checkers, Some(mutant));
        result.violation.map(|violation| violation.what)
    })
}

/// Returns the first report of `check`, and the number of seeds up to it.
pub(crate) fn first_report(
    first: u64,
    seeds_max: u64,
    check: impl Fn(u64) -> Option<String>,
) -> Option<(u64, String)> {
    (0..seeds_max).find_map(|at| {
        let seed = first.wrapping_add(at);
        // A bug may cause a panic, which is no report of the checker.
        let found = panic::catch_unwind(AssertUnwindSafe(|| check(seed)));
        found.ok().flatten().map(|message| (at + 1, message))
    })
}

macro_rules! mutants {
    ($($checker:literal: $name:literal => $bug:expr,)+) => {
        pub const MUTANTS: &[Mutant] =
            &[$(Mutant { name: $name, checker: $checker, bug: $bug },)+];
    };
}

mutants! {
    "fencing": "a result of an earlier attempt counts" => EditInput(input_bugs::late_result),
    "fencing": "a result of an earlier incarnation counts" => EditInput(|_, core, input| {
        if let Input::Report { runner, incarnation, .. } = input
            && let Some(view) = core.runner(*runner)
        {
            *incarnation = view.incarnation;
        }
    }),
    "fencing": "a result counts twice" => EditInput(|memory, _, input| {
        if let Input::Report { report: RunnerReport::RunFinished { attempt, run, .. }, .. } = input
            && !memory.reported.insert((*attempt, run.0))
        {
            run.0 ^= 1;
        }
    }),
    "fencing": "a runner is not stopped" =>
        DropAction(|action| matches!(action, Action::StopRunner { .. })),
    "runner_states": "a busy runner gets a second attempt" => Actions(action_bugs::second_attempt),
    "runner_states": "a cancelled attempt counts as ended" =>
        Inputs(input_bugs::cancel_taken_for_end),
    "runner_states": "a runner is given up too early" => Config(|config| {
        config.supervision.max_start_failures = 1;
    }),
    "runner_states": "runners are started again without a rest" => Config(|config| {
        config.supervision.restart_backoff = Duration::ZERO;
    }),
    "runner_states": "an attempt is cancelled twice" =>
        RepeatAction(|action| matches!(action, Action::CancelAttempt { .. })),
    "run_conservation": "a result contains a task too many" =>
        EditResult(|result| result.tasks.ok += 1),
    "run_conservation": "a result contains a run too few" => EditResult(|result| {
        result.runs.submitted = result.runs.submitted.saturating_sub(1);
    }),
    "run_conservation": "results are not in the order of tasks" =>
        EditResult(|result| result.statuses.reverse()),
    "run_conservation": "metrics of two runs are exchanged" => EditResult(|result| {
        for (_, status) in &mut result.statuses {
            Arc::make_mut(status).run_metrics.reverse();
        }
    }),
    "run_conservation": "a batch ends twice" =>
        RepeatAction(|action| matches!(action, Action::DropTasks { .. })),
    "run_conservation": "a stop hides what it lost" => EditAction(|action| {
        if let Action::Respond { answer: Response::Stopped(report), .. } = action {
            report.undelivered = 0;
        }
    }),
    "run_conservation": "results are not remembered" =>
        Config(|config| config.limits.terminal_batches = 0),
    "counters": "an action is lost" =>
        DropAction(|action| matches!(action, Action::StartRunner { .. })),
    "counters": "a heartbeat is applied twice" => RepeatInput(|input| {
        matches!(input, Input::Report { report: RunnerReport::Heartbeat, .. })
    }),
    "responses": "a response is lost" => Actions(action_bugs::answer_lost),
    "responses": "a response is sent twice" =>
        RepeatAction(|action| matches!(action, Action::Respond { .. })),
    "responses": "a withdrawn request gets a response" => DropInput(|input| {
        matches!(input, Input::RequestAbandoned { .. })
    }),
    "responses": "a timeout is ignored" => EditInput(input_bugs::timeout_ignored),
    "responses": "waiters are answered one step late" => Actions(action_bugs::answer_late),
    "responses": "the minimum is too high" => EditInput(input_bugs::minimum_doubled),
    "responses": "stragglers get more time" => Config(|config| {
        config.over_rollout.wait_after_min += Duration::from_secs(1);
    }),
    "wait_outcomes": "the minimum is too low" => EditInput(|_, _, input| {
        if let Input::Requested { what: Request::Submit { min_wait_num, .. }, .. } = input {
            *min_wait_num = min_wait_num.map(|min| min / 2);
        }
    }),
    "wait_outcomes": "a quorum is never missed" => Config(|config| {
        config.train.quorum_percent = Some(0);
    }),
    "wait_outcomes": "no success is needed" => Config(|config| {
        config.train.success_min_percent = 0;
        config.eval.success_min_percent = 0;
    }),
    "wait_outcomes": "time is up early" => EditInput(input_bugs::timeout_halved),
    "wait_outcomes": "waits time out early" => Config(|config| config.default_timeout /= 4),
    "wait_outcomes": "a batch that failed goes on" => Config(batches_never_fail),
    "wait_outcomes": "stragglers get no time" => Config(|config| {
        config.over_rollout.wait_after_min = Duration::ZERO;
    }),
    "refusals": "batches are accepted under other ids" => EditInput(input_bugs::names_mixed_up),
    "refusals": "a batch of the wrong kind is finalized" => EditInput(|_, core, input| {
        if let Input::Requested { what: Request::Finalize { batch, kind, .. }, .. } = input
            && let Some(view) = core.batch(batch)
        {
            *kind = view.kind;
        }
    }),
    "refusals": "tasks of any size are accepted" =>
        Config(|config| config.limits.runs_per_task = 1_000),
    "refusals": "no request may wait" => Config(|config| config.limits.waiters = 0),
    "refusals": "requests are refused as stopped" => EditAction(|action| {
        if let Action::Respond { answer: Response::Refused(refusal), .. } = action
            && matches!(refusal, Refusal::TimedOut { .. } | Refusal::AlreadyActive { .. })
        {
            *refusal = Refusal::Stopped;
        }
    }),
    "reasons": "late attempts are reported as not begun" => EditAction(|action| {
        if let Action::CancelAttempt { reason: reason @ AttemptCancelReason::Timeout, .. } = action
        {
            *reason = AttemptCancelReason::BeginTimeout;
        }
    }),
    "reasons": "unfinished tasks are dropped all the same" => Config(|config| {
        config.over_rollout.return_partial_tasks = false;
    }),
    "reasons": "unfinished tasks are kept all the same" => Config(|config| {
        config.over_rollout.return_partial_tasks = true;
    }),
    "reasons": "an abort keeps nothing" => EditInput(|_, _, input| {
        if let Input::Requested { what: Request::Abort { keep_partial_results, .. }, .. } = input {
            *keep_partial_results = false;
        }
    }),
    "reasons": "cancels must be acknowledged at once" => Config(|config| {
        config.supervision.cancel_grace /= 8;
    }),
    "reasons": "the heartbeat timeout is too short" => Config(|config| {
        config.supervision.heartbeat_timeout = Some(Duration::from_millis(500));
    }),
    "dispatch_order": "attempts go out in reverse" => Actions(|it| it.actions.reverse()),
    "dispatch_order": "the second attempt goes out first" =>
        Actions(action_bugs::attempts_exchanged),
    "dispatch_order": "tasks are split into other slices" => Config(|config| {
        config.max_repeat_times_per_runner = Some(5);
    }),
    "finalization": "an invalid output blocks every delivery" =>
        Actions(action_bugs::blocked_after_invalid_output),
    "payload_safety": "a payload is dropped while it is delivered" =>
        Actions(action_bugs::dropped_early),
    "payload_safety": "results are delivered twice" => Actions(action_bugs::delivered_twice),
    "payload_safety": "a failed delivery counts as acknowledged" => EditInput(|_, _, input| {
        if let Input::DeliveryDone { delivery, .. } = input {
            *delivery = DeliveryOutcome::Acknowledged { metrics: Metrics::new() };
        }
    }),
    "payload_safety": "a payload vanishes on receipt" => EditInput(|_, _, input| {
        if let Input::Report { report: RunnerReport::RunFinished { outcome: Ok(output), .. }, .. } =
            input
        {
            output.payload = None;
        }
    }),
    "payload_safety": "a delivery leaves a task out" => EditAction(|action| {
        if let Action::Deliver { results, .. } = action {
            results.pop();
        }
    }),
    "payload_safety": "an acknowledged delivery counts as failed" => EditInput(|_, _, input| {
        if let Input::DeliveryDone { delivery, .. } = input {
            *delivery = DeliveryOutcome::Failed { message: "so it is said".into() };
        }
    }),
    "payload_safety": "delivered payloads are not released" => DropAction(|action| {
        matches!(action, Action::ReleasePayloads(_))
    }),
    "payload_safety": "a late payload is kept" => DropAction(|action| {
        matches!(action, Action::DropPayload { reason: DropReason::Late, .. })
    }),
    "payload_safety": "groups are delivered in part" => Config(|config| {
        config.failures.groups = GroupPolicy::Partial;
    }),
    "retries": "a successful run is retried" => Actions(action_bugs::good_run_again),
    "retries": "every loss is charged to the task" => EditInput(|_, _, input| {
        if let Input::Report { report: RunnerReport::Lost { suspicion, .. }, .. } = input {
            *suspicion = Suspicion::Sole;
        }
    }),
    "retries": "runs are retried for ever" => Config(|config| retries(config, 1_000)),
    "retries": "runs are retried without a pause" => Config(|config| {
        config.failures.rules.iter_mut().for_each(|rule| rule.backoff = Duration::ZERO);
    }),
    "retries": "the pause of a retry is too short" => Config(|config| {
        config.failures.rules.iter_mut().for_each(|rule| rule.backoff /= 2);
    }),
    "retries": "runs are never retried" => Config(|config| retries(config, 0)),
    "retries": "a poison task is not recognized" =>
        Config(|config| config.failures.poison_limit = 1_000),
    "retries": "retries return to the runner of the failure" => Actions(action_bugs::same_runner),
    "retries": "a cancelled run is retried" => Actions(action_bugs::cancelled_run_again),
    "retries": "siblings of a cancelled run are charged" =>
        Inputs(input_bugs::sibling_charged),
    "run_conservation": "siblings of a cancelled run are cancelled" =>
        Inputs(input_bugs::sibling_cancelled),
    "payload_safety": "payloads of siblings of a cancelled run are lost" =>
        Actions(action_bugs::sibling_result_lost),
    "responses": "a cancel is denied" => EditAction(|action| {
        if let Action::Respond { answer: Response::RunCancelled(found), .. } = action {
            *found = false;
        }
    }),
    "durability": "a cancel is not recorded" => DropAction(|action| {
        let requested = RunEnd::Cancelled(CancelReason::Requested);
        matches!(action, Action::AppendRecord(LedgerRecord::RunEnded { ending, .. })
            if *ending == requested)
    }),
    "limits": "the budget for payloads is ignored" => Config(|config| {
        config.limits.payload_bytes = u64::MAX;
    }),
    "limits": "too many batches" => Config(|config| config.limits.batches = 1_000),
    "limits": "too many waiters" => Config(|config| config.limits.waiters = 1_000),
    "limits": "too many runners" => Config(|config| config.limits.runners = 1_000),
    "limits": "too many results are remembered" => Config(|config| {
        config.limits.terminal_batches += 3;
    }),
    "limits": "too many open tasks" => Config(|config| config.limits.open_tasks = 100_000),
    "deadlines": "deadlines are ignored" => DropInput(|input| *input == Input::TimePassed),
    "deadlines": "attempts may begin as late as they like" => Config(|config| {
        config.supervision.begin_timeout *= 100;
    }),
    "deadlines": "starts may take as long as they like" => Config(|config| {
        config.supervision.start_timeout *= 100;
    }),
    "deadlines": "cancels may take as long as they like" => Config(|config| {
        config.supervision.cancel_grace *= 100;
    }),
    "deadlines": "the sink may take as long as it likes" => Config(|config| {
        config.delivery_timeout *= 100;
    }),
    "deadlines": "attempts get more time than they may" => Config(|config| config.max_timeout *= 2),
    "deadlines": "timeouts are learned too early" => Config(|config| {
        config.dynamic_timeout.warmup_min_steps = 0;
        config.dynamic_timeout.min_samples = 1;
    }),
    "deadlines": "timeouts are learned wrongly" =>
        Config(|config| config.dynamic_timeout.ratio *= 3.0),
    "deadlines": "runners rest for ever" => Config(|config| {
        config.supervision.restart_backoff *= 50;
        config.supervision.max_restart_backoff *= 50;
    }),
    "deadlines": "the heartbeat timeout is ignored" =>
        Config(|config| config.supervision.heartbeat_timeout = None),
    "scaling": "more runners than the most" =>
        Config(|config| bounds(config, |bounds| bounds.max += 3)),
    "scaling": "fewer runners than the fewest" => Config(|config| bounds(config, |bounds| {
        bounds.min = 0;
    })),
    "scaling": "runners retire before the idle timeout" => Config(|config| bounds(config, |bounds| {
        bounds.idle_timeout = Duration::ZERO;
    })),
    "scaling": "workers start in parts" => Config(|config| bounds(config, |bounds| {
        bounds.runners_per_worker = 1;
    })),
    "scaling": "the pool does not follow the work" => Config(|config| {
        if let Some(bounds) = config.scaling.take() {
            config.runners = bounds.fit(config.runners);
        }
    }),
    "isolation": "suspects share a process" => Config(|config| config.runners_per_worker = 1),
    "isolation": "suspects take every runner" => EditAction(|action| {
        if let Action::StartRunner { isolated, .. } = action {
            *isolated = true;
        }
    }),
    "isolation": "a process that a task has ended is started late" => EditInput(|_, _, input| {
        if let Input::Report { report: RunnerReport::Lost { suspicion, .. }, .. } = input {
            *suspicion = Suspicion::None;
        }
    }),
    "reasons": "a busy runner is stopped at a deadline" => Actions(action_bugs::busy_stopped),
    "durability": "endings are not recorded" => Actions(action_bugs::ending_unrecorded),
    "durability": "a truncation is not recorded" => DropAction(|action| {
        matches!(action, Action::AppendRecord(LedgerRecord::Truncated { .. }))
    }),
    "durability": "responses come before their records" => Actions(|it| {
        it.actions.sort_by_key(|action| matches!(action, Action::AppendRecord(_)));
    }),
    "durability": "a batch is not restored" => Inputs(|memory, _, input| {
        input_bugs::forget(memory, input, |record| matches!(record, LedgerRecord::Submitted { .. }))
    }),
    "durability": "ended runs are restored as pending" => Inputs(|memory, _, input| {
        input_bugs::forget(memory, input, |record| matches!(record, LedgerRecord::RunEnded { .. }))
    }),
    "durability": "a result is not restored" => Inputs(|memory, _, input| {
        input_bugs::forget(memory, input, |record| matches!(record, LedgerRecord::Closed(_)))
    }),
    "durability": "numbers are used again after a crash" => Config(|config| config.epoch = 0),
    "payload_safety": "a delivery is not recorded" => DropAction(|action| {
        matches!(action, Action::AppendRecord(LedgerRecord::DeliveryStarted { .. }))
    }),
    "counters": "records are restored twice" =>
        RepeatInput(|input| matches!(input, Input::Restore(_))),
    "progress": "a runner never becomes ready" => DropInput(|input| {
        let Input::Report { runner, report, .. } = input else { return false };
        runner.0 == 0 && matches!(report, RunnerReport::Ready { .. })
    }),
    "progress": "the sink's answers are lost" =>
        DropInput(|input| matches!(input, Input::DeliveryDone { .. })),
    "progress": "work is held back" => Config(|config| config.limits.payload_bytes = 2),
    "repeat": "randomness from outside the seed" => Inputs(input_bugs::outside_chance),
}

fn bounds(config: &mut CoreConfig, change: impl Fn(&mut ScalingBounds)) {
    config.scaling.as_mut().map(change);
}

fn retries(config: &mut CoreConfig, retries: u32) {
    for rule in &mut config.failures.rules {
        rule.retries = retries;
    }
}

fn batches_never_fail(config: &mut CoreConfig) {
    for rule in &mut config.failures.rules {
        rule.then = OnExhausted::FailRun;
    }
}
