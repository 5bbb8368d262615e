//! The runs of the made-up job: drawn from their numbers, so that they are the same every time.

use rollway_telemetry::view::{BatchRuns, RunRow, RunState};

/// Runs of a task.
pub(crate) const REPEAT: u32 = 4;

/// Tasks of a step, and of an evaluation.
pub(crate) const TASKS: u32 = 500;
pub(crate) const EVAL_TASKS: u32 = 100;

/// Every so many steps there is an evaluation.
pub(crate) const EVERY: u32 = 10;

/// Seconds from the beginning of one step to that of the next.
pub(crate) const PACE: f64 = 41.0;

pub(crate) const WORKFLOWS: [&str; 3] = ["math_workflow", "tool_workflow", "multi_turn_workflow"];

pub(crate) const FAILURES: [(&str, &str); 4] = [
    ("workflow_error", "KeyError: 'answer' in tools/calculator.py, line 41"),
    ("timeout", "no end after 600 s"),
    ("invalid_result", "the reward is not a number: nan"),
    ("runner_lost", "the worker process was killed by signal 9 (out of memory?)"),
];

/// Returns a number from 0 to 1 that belongs to two others.
pub(crate) fn chance(of: u64, what: u64) -> f64 {
    let mut mixed =
        of.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ what.wrapping_mul(0xD1B5_4A32_D192_ED03);
    for _ in 0..2 {
        mixed ^= mixed >> 30;
        mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^= mixed >> 27;
    }
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

/// A batch of the job.
#[derive(Clone, Debug)]
pub(crate) struct Lot {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) step: u32,
    pub(crate) tasks: u32,
    pub(crate) repeat: u32,
    /// The number of its first run among all.
    pub(crate) first: usize,
    pub(crate) began: f64,
    pub(crate) aborted: bool,
    pub(crate) runs: BatchRuns,
    pub(crate) rewards: f64,
}

impl Lot {
    pub(crate) fn len(&self) -> usize {
        (self.tasks * self.repeat) as usize
    }

    pub(crate) fn is_over(&self) -> bool {
        self.runs.running + self.runs.pending == 0
    }
}

/// Returns the batches of so many tasks.
pub(crate) fn lots(tasks: u32, start: f64) -> Vec<Lot> {
    let mut lots = Vec::new();
    let (mut left, mut first, mut step) = (tasks, 0, 0);
    while left > 0 {
        step += 1;
        let began = start + PACE * f64::from(step - 1);
        let mut push = |name: String, kind, tasks: u32, repeat: u32, began| {
            let runs = BatchRuns { pending: u64::from(tasks * repeat), ..BatchRuns::default() };
            let aborted = false;
            let lot =
                Lot { name, kind, step, tasks, repeat, first, began, aborted, runs, rewards: 0.0 };
            first += lot.len();
            lots.push(lot);
        };
        let many = left.min(TASKS);
        push(step.to_string(), "train", many, REPEAT, began);
        left -= many;
        if step % EVERY == 0 && left > 0 {
            let many = left.min(EVAL_TASKS);
            push(format!("{step}/held_out"), "eval", many, 1, began + 0.6 * PACE);
            left -= many;
        }
    }
    lots
}

/// What becomes of a run, as far as it can be drawn from its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) state: RunState,
    pub(crate) attempts: u32,
    pub(crate) seconds: f64,
    pub(crate) tokens: u64,
    pub(crate) turns: u64,
    pub(crate) reward: f64,
    pub(crate) after: f64,
    pub(crate) failure: usize,
}

/// How far the model has come after a step.
pub(crate) fn skill(step: u32) -> f64 {
    let step = f64::from(step);
    0.18 + 0.62 * (1.0 - (-step / 70.0).exp()) + 0.015 * (step / 3.0).sin()
}

pub(crate) fn fate(index: usize, step: u32) -> Fate {
    let draw = |what| chance(index as u64, what);
    // Lengths have a long tail, and long runs are the ones that get lost.
    let spread = (draw(1) + draw(2) + draw(3) - 1.5) * 1.25;
    let tokens = (420.0 * spread.exp()) as u64 + 24;
    let length = tokens as f64;
    let seconds = 1.6 + length / 62.0 * (0.8 + 0.5 * draw(4));
    let lost = 0.012 + 0.10 * (length / 1600.0).min(1.0).powi(2);
    let luck = draw(5);
    let state = match luck {
        luck if luck < lost => RunState::Failed,
        luck if luck < lost * 1.7 => RunState::Cancelled,
        _ => RunState::Succeeded,
    };
    let is_right = draw(6) < skill(step) * (1.08 - 0.25 * (length / 1600.0).min(1.0));
    let reward = if is_right { 1.0 } else { (draw(7) * 4.0).floor() * 0.1 };
    let attempts = if state == RunState::Failed { 3 } else { 1 + u32::from(draw(8) < 0.04) };
    let turns = 1 + (draw(9) * 5.0) as u64;
    let failure = (draw(10) * draw(11) * 4.0) as usize;
    Fate { state, attempts, seconds, tokens, turns, reward, after: draw(12) * 14.0, failure }
}

/// Describes a run in the state that it is in.
pub(crate) fn describe(lot: &Lot, index: usize, state: RunState, began: f64, now: f64) -> RunRow {
    let fate = fate(index, lot.step);
    let at = (index - lot.first) as u32;
    let is_over = !matches!(state, RunState::Pending | RunState::Running);
    let has_begun = state != RunState::Pending;
    let good = state == RunState::Succeeded;
    let message = match state {
        RunState::Failed => Some(FAILURES[fate.failure.min(3)].1.to_owned()),
        RunState::Cancelled => Some("the batch was finalized without it".to_owned()),
        _ => None,
    };
    RunRow {
        batch: lot.name.clone(),
        task: at / lot.repeat,
        run: at % lot.repeat,
        kind: lot.kind.to_owned(),
        workflow: WORKFLOWS[at as usize / 4 % 3].to_owned(),
        state,
        attempts: if has_begun { fate.attempts } else { 0 },
        runner: has_begun.then_some((index % 64) as u32),
        begin: has_begun.then_some(began),
        end: is_over.then_some(began + fate.seconds),
        seconds: match state {
            RunState::Pending => None,
            RunState::Running => Some(now - began),
            _ => Some(fate.seconds),
        },
        reward: good.then_some(fate.reward),
        tokens: good.then_some(fate.tokens),
        turns: good.then_some(fate.turns),
        version: good.then_some(u64::from(lot.step.saturating_sub(1))),
        message,
    }
}
