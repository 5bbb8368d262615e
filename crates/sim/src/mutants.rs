//! Planted bugs: each stands between the core and the world and spoils something. A checker that
//! does not notice the bug that was made for it is not worth having.

mod action_bugs;
mod input_bugs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rollway_core::{
    Action, AttemptId, BatchKey, Core, CoreConfig, GroupPolicy, Input, OnExhausted, RunnerId,
    ScalingBounds, TaskId, Time,
};

use crate::checkers::Checkers;
use crate::trace::TraceTarget;
use crate::{REPEAT, run};
use Bug::{Hears, Says, Told};

/// A planted bug and the checker that must notice it.
#[derive(Clone, Copy)]
pub struct Mutant {
    /// What it does, in a few words.
    pub name: &'static str,
    /// Who must notice.
    pub checker: &'static str,
    bug: Bug,
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.checker)
    }
}

/// Where a bug sits.
#[derive(Clone, Copy)]
enum Bug {
    /// In what the core is told in the beginning.
    Told(fn(&mut CoreConfig)),
    /// In what it hears: nothing, something else, or more than was said.
    Hears(fn(&mut Memory, &Core, Input) -> Vec<Input>),
    /// In what it orders.
    Says(fn(PendingActions<'_>)),
}

/// What a core with a bug is about to say.
struct PendingActions<'a> {
    memory: &'a mut Memory,
    core: &'a Core,
    input: &'a Input,
    actions: &'a mut Vec<Action>,
}

/// What a bug remembers.
#[derive(Debug, Default)]
struct Memory {
    /// Counts whatever it likes to count.
    count: u64,
    attempts: BTreeMap<AttemptId, (BatchKey, TaskId)>,
    reported: BTreeSet<(AttemptId, u32)>,
    succeeded: BTreeSet<(BatchKey, TaskId, u32)>,
    cancelled: BTreeSet<(BatchKey, TaskId, u32)>,
    last_on: BTreeMap<(BatchKey, TaskId, u32), RunnerId>,
    held_back: Vec<Action>,
}

/// The core under test, as it is or with a bug.
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
    /// Returns a core, as it is or with a bug.
    pub fn new(config: CoreConfig, mutant: Option<&Mutant>) -> Self {
        let bug = mutant.map(|mutant| mutant.bug);
        Self { core: begin(&config, bug), config, bug, memory: Memory::default() }
    }

    /// Begins anew, after a crash.
    pub fn begin_anew(&mut self) {
        self.config.epoch += 1;
        self.core = begin(&self.config, self.bug);
        self.memory.held_back.clear();
    }

    /// Returns the core itself.
    pub const fn core(&self) -> &Core {
        &self.core
    }

    /// Applies an input.
    pub fn apply(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        match self.bug {
            None | Some(Told(_)) => self.core.apply(now, input, actions),
            Some(Hears(hear)) => {
                for input in hear(&mut self.memory, &self.core, input) {
                    self.core.apply(now, input, actions);
                }
            }
            Some(Says(say)) => {
                self.core.apply(now, input.clone(), actions);
                let (memory, core) = (&mut self.memory, &self.core);
                say(PendingActions { memory, core, input: &input, actions });
            }
        }
    }
}

fn begin(config: &CoreConfig, bug: Option<Bug>) -> Core {
    let mut config = config.clone();
    if let Some(Told(tell)) = bug {
        tell(&mut config);
    }
    Core::new(config)
}

/// What became of a planted bug.
#[derive(Debug)]
pub struct MutantResult {
    pub mutant: &'static Mutant,
    /// After how many seeds it was noticed, and in what words; none: it was not.
    pub caught: Option<(u64, String)>,
}

/// Runs seeds with a planted bug until its checker notices, or `seeds_max` were tried.
pub fn hunt(mutant: &'static Mutant, first: u64, seeds_max: u64) -> MutantResult {
    let mut caught = None;
    for at in 0..seeds_max {
        let seed = first.wrapping_add(at);
        // A bug may well make the core panic; that is not for this checker to notice.
        let found = panic::catch_unwind(AssertUnwindSafe(|| notice(mutant, seed)));
        if let Ok(Some(words)) = found {
            caught = Some((at + 1, words));
            break;
        }
    }
    MutantResult { mutant, caught }
}

fn notice(mutant: &'static Mutant, seed: u64) -> Option<String> {
    if mutant.checker == REPEAT {
        return crate::repeats(seed, Some(mutant)).err();
    }
    let outcome = run(seed, TraceTarget::Nowhere, Checkers::only(mutant.checker), Some(mutant));
    outcome.violation.map(|violation| violation.what)
}

macro_rules! mutants {
    ($($checker:literal: $name:literal => $bug:expr,)+) => {
        /// All of them, by checker.
        pub const MUTANTS: &[Mutant] =
            &[$(Mutant { name: $name, checker: $checker, bug: $bug },)+];
    };
}

mutants! {
    "fencing": "a result of an earlier attempt counts" => Hears(input_bugs::late_result),
    "fencing": "a result of an earlier life counts" => Hears(input_bugs::earlier_life),
    "fencing": "a result counts twice" => Hears(input_bugs::result_twice),
    "fencing": "a runner is not stopped" => Says(action_bugs::stop_forgotten),
    "place": "a busy runner gets a second attempt" => Says(action_bugs::second_attempt),
    "place": "a cancelled attempt is taken for ended" => Hears(input_bugs::cancel_taken_for_end),
    "place": "a runner is given up too early" => Told(|config| {
        config.supervision.start_failures_max = 1;
    }),
    "place": "runners are started again without a rest" => Told(|config| {
        config.supervision.restart_backoff = Duration::ZERO;
    }),
    "place": "an attempt is cancelled twice" => Says(action_bugs::cancel_twice),
    "ends": "a result counts a task too many" => Says(action_bugs::task_too_many),
    "ends": "a result counts a run too few" => Says(action_bugs::run_too_few),
    "ends": "results are not in the order of tasks" => Says(action_bugs::tasks_reversed),
    "ends": "metrics of two runs are exchanged" => Says(action_bugs::metrics_reversed),
    "ends": "a batch ends twice" => Says(action_bugs::ends_twice),
    "ends": "a stop hides what it lost" => Says(action_bugs::stop_hides),
    "ends": "results are not remembered" => Told(|config| config.limits.terminal_batches = 0),
    "counts": "an order is swallowed" => Says(action_bugs::start_swallowed),
    "counts": "a sign of life is heard twice" => Hears(input_bugs::alive_twice),
    "answers": "an answer is lost" => Says(action_bugs::answer_lost),
    "answers": "an answer is given twice" => Says(action_bugs::answer_twice),
    "answers": "somebody is answered who went away" => Hears(input_bugs::withdrawal_ignored),
    "answers": "a timeout is ignored" => Hears(input_bugs::timeout_ignored),
    "answers": "whoever waits hears of the end late" => Says(action_bugs::answer_late),
    "answers": "the minimum is taken for more" => Hears(input_bugs::minimum_doubled),
    "answers": "stragglers get more time" => Told(|config| {
        config.over_rollout.wait_after_min += Duration::from_secs(1);
    }),
    "enough": "the minimum is taken for less" => Hears(input_bugs::minimum_ignored),
    "enough": "a quorum is never missed" => Told(|config| {
        config.train.quorum_percent = Some(0);
    }),
    "enough": "no success is needed" => Told(|config| {
        config.train.success_min_percent = 0;
        config.eval.success_min_percent = 0;
    }),
    "enough": "time is up early" => Hears(input_bugs::timeout_halved),
    "enough": "patience ends early" => Told(|config| config.default_timeout /= 4),
    "enough": "a batch that failed goes on" => Told(batches_never_fail),
    "enough": "stragglers get no time" => Told(|config| {
        config.over_rollout.wait_after_min = Duration::ZERO;
    }),
    "refusals": "batches are taken in under other names" => Hears(input_bugs::names_mixed_up),
    "refusals": "a batch of the wrong kind is finalized" => Hears(input_bugs::kind_ignored),
    "refusals": "tasks of any size are taken" => Told(|config| config.limits.runs_per_task = 1_000),
    "refusals": "nobody may wait" => Told(|config| config.limits.waiters = 0),
    "refusals": "everybody is told that all is stopped" => Says(action_bugs::stopped_for_no_reason),
    "reasons": "late attempts are said not to have begun" => Says(action_bugs::wrong_cancel),
    "reasons": "unfinished tasks are dropped all the same" => Told(|config| {
        config.over_rollout.return_partial_tasks = false;
    }),
    "reasons": "unfinished tasks are kept all the same" => Told(|config| {
        config.over_rollout.return_partial_tasks = true;
    }),
    "reasons": "an abort keeps nothing" => Hears(input_bugs::abort_keeps_nothing),
    "reasons": "cancels must be acknowledged at once" => Told(|config| {
        config.supervision.cancel_grace /= 8;
    }),
    "reasons": "runners must never be silent" => Told(|config| {
        config.supervision.silence_timeout = Some(Duration::from_millis(500));
    }),
    "order": "attempts go out in reverse" => Says(action_bugs::attempts_reversed),
    "order": "the second attempt goes out first" => Says(action_bugs::attempts_exchanged),
    "order": "tasks are cut into other slices" => Told(|config| {
        config.max_repeat_times_per_runner = Some(5);
    }),
    "kept": "a payload is dropped while it is delivered" => Says(action_bugs::dropped_early),
    "kept": "results are delivered twice" => Says(action_bugs::delivered_twice),
    "kept": "a delivery is acknowledged by nobody" => Hears(input_bugs::self_acknowledged),
    "kept": "a payload vanishes on receipt" => Hears(input_bugs::payload_vanishes),
    "kept": "a delivery leaves a task out" => Says(action_bugs::task_left_out),
    "kept": "what arrived is handed out again" => Hears(input_bugs::handed_again),
    "kept": "delivered payloads are not released" => Says(action_bugs::never_released),
    "kept": "a late payload is kept" => Says(action_bugs::late_kept),
    "kept": "groups are delivered in part" => Told(|config| {
        config.failures.groups = GroupPolicy::Partial;
    }),
    "retries": "a good run is tried again" => Says(action_bugs::good_run_again),
    "retries": "every loss is blamed on the task" => Hears(input_bugs::always_suspect),
    "retries": "runs are tried for ever" => Told(|config| retries(config, 1_000)),
    "retries": "runs are never tried again" => Told(|config| retries(config, 0)),
    "retries": "poison is not recognised" => Told(|config| config.failures.poison_limit = 1_000),
    "retries": "retries go back where they failed" => Says(action_bugs::same_runner),
    "retries": "a run that was cancelled is tried again" => Says(action_bugs::cancelled_run_again),
    "retries": "whoever shares a runner with a cancelled run is charged" =>
        Hears(input_bugs::sibling_charged),
    "ends": "whoever shares a runner with a cancelled run is cancelled" =>
        Hears(input_bugs::sibling_cancelled),
    "kept": "what whoever shares a runner with a cancelled run yielded is lost" =>
        Says(action_bugs::sibling_result_lost),
    "answers": "a cancel is said to have come too late" => Says(action_bugs::cancel_denied),
    "survival": "a cancel is not recorded" => Says(action_bugs::cancel_unrecorded),
    "limits": "the budget for payloads is ignored" => Told(|config| {
        config.limits.payload_bytes = u64::MAX;
    }),
    "limits": "too many batches" => Told(|config| config.limits.batches = 1_000),
    "limits": "too many waiters" => Told(|config| config.limits.waiters = 1_000),
    "limits": "too many runners" => Told(|config| config.limits.runners = 1_000),
    "limits": "too many results are remembered" => Told(|config| {
        config.limits.terminal_batches += 3;
    }),
    "limits": "too many open tasks" => Told(|config| config.limits.open_tasks = 100_000),
    "overdue": "nobody hears the clock" => Hears(input_bugs::clock_ignored),
    "overdue": "attempts may begin as late as they like" => Told(|config| {
        config.supervision.begin_timeout *= 100;
    }),
    "overdue": "starts may take as long as they like" => Told(|config| {
        config.supervision.start_timeout *= 100;
    }),
    "overdue": "cancels may take as long as they like" => Told(|config| {
        config.supervision.cancel_grace *= 100;
    }),
    "overdue": "the sink may take as long as it likes" => Told(|config| {
        config.delivery_timeout *= 100;
    }),
    "overdue": "attempts get more time than they may" => Told(|config| config.max_timeout *= 2),
    "overdue": "timeouts are learned too early" => Told(|config| {
        config.dynamic_timeout.warmup_min_steps = 0;
        config.dynamic_timeout.min_samples = 1;
    }),
    "overdue": "timeouts are learned wrongly" => Told(|config| config.dynamic_timeout.ratio *= 3.0),
    "overdue": "runners rest for ever" => Told(|config| {
        config.supervision.restart_backoff *= 50;
        config.supervision.restart_backoff_max *= 50;
    }),
    "overdue": "silence is not noticed" => Told(|config| config.supervision.silence_timeout = None),
    "scaling": "more runners than the most" => Told(|config| bounds(config, |told| told.max += 3)),
    "scaling": "fewer runners than the fewest" => Told(|config| bounds(config, |told| {
        told.min = 0;
    })),
    "scaling": "runners go before it was quiet" => Told(|config| bounds(config, |told| {
        told.idle_timeout = Duration::ZERO;
    })),
    "scaling": "workers come in parts" => Told(|config| bounds(config, |told| {
        told.runners_per_worker = 1;
    })),
    "scaling": "the pool does not follow the work" => Told(|config| {
        if let Some(told) = config.scaling.take() {
            config.runners = told.fit(config.runners);
        }
    }),
    "reasons": "a busy runner is stopped when time passes" => Says(action_bugs::busy_stopped),
    "survival": "endings are not recorded" => Says(action_bugs::ending_unrecorded),
    "survival": "a cut is not recorded" => Says(action_bugs::cut_unrecorded),
    "survival": "answers come before their records" => Says(action_bugs::records_last),
    "survival": "a batch is not taken up" => Hears(input_bugs::submitted_forgotten),
    "survival": "runs that had ended are taken for pending" => Hears(input_bugs::ending_forgotten),
    "survival": "a result is not taken up" => Hears(input_bugs::end_forgotten),
    "survival": "numbers are used again after a crash" => Told(|config| config.epoch = 0),
    "kept": "an offer is not recorded" => Says(action_bugs::offer_unrecorded),
    "counts": "what is recorded is heard twice" => Hears(input_bugs::recorded_twice),
    "progress": "a runner is never heard to be ready" => Hears(input_bugs::never_ready),
    "progress": "the sink is never heard" => Hears(input_bugs::sink_unheard),
    "progress": "work is held back" => Told(|config| config.limits.payload_bytes = 2),
    "repeat": "chance from outside the seed" => Hears(input_bugs::outside_chance),
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
