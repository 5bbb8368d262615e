//! Runs of the simulated job, derived from their numbers.

use rollway_telemetry::view::{BatchRuns, RunRow, RunState};

/// Runs of a task.
pub(crate) const REPEAT: u32 = 4;

/// Tasks of a step, and of an evaluation.
pub(crate) const TASKS: u32 = 500;
pub(crate) const EVAL_TASKS: u32 = 100;

/// Steps between evaluations.
pub(crate) const EVAL_INTERVAL: u32 = 10;

/// Seconds between the begins of steps.
pub(crate) const PACE: f64 = 41.0;

pub(crate) const WORKFLOWS: [&str; 3] = ["math_workflow", "tool_workflow", "multi_turn_workflow"];

pub(crate) const FAILURES: [(&str, &str); 4] = [
    ("workflow", "KeyError: 'answer' in tools/calculator.py, line 41"),
    ("timeout", "no end after 600 s"),
    ("invalid_output", "the reward is not a number: nan"),
    ("runner_lost", "the worker process was killed by signal 9 (out of memory?)"),
];

/// Returns a pseudo-random number from 0 to 1.
pub(crate) fn chance(seed: u64, stream: u64) -> f64 {
    let mut mixed =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03);
    for _ in 0..2 {
        mixed ^= mixed >> 30;
        mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^= mixed >> 27;
    }
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

#[derive(Clone, Debug)]
pub(crate) struct DemoBatch {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) step: u32,
    pub(crate) tasks: u32,
    pub(crate) repeat: u32,
    /// Number of its first run.
    pub(crate) first: usize,
    pub(crate) began: f64,
    pub(crate) aborted: bool,
    pub(crate) runs: BatchRuns,
    pub(crate) rewards: f64,
}

impl DemoBatch {
    pub(crate) fn len(&self) -> usize {
        (self.tasks * self.repeat) as usize
    }

    pub(crate) fn is_over(&self) -> bool {
        self.runs.running + self.runs.pending == 0
    }
}

/// Returns the batches for a number of tasks.
pub(crate) fn batches(tasks: u32, start: f64) -> Vec<DemoBatch> {
    let mut batches = Vec::new();
    let (mut left, mut first, mut step) = (tasks, 0, 0);
    while left > 0 {
        step += 1;
        let began = start + PACE * f64::from(step - 1);
        let mut push = |name: String, kind, tasks: u32, repeat: u32, began| {
            let runs = BatchRuns { pending: u64::from(tasks * repeat), ..BatchRuns::default() };
            let aborted = false;
            let rewards = 0.0;
            let batch =
                DemoBatch { name, kind, step, tasks, repeat, first, began, aborted, runs, rewards };
            first += batch.len();
            batches.push(batch);
        };
        let many = left.min(TASKS);
        push(step.to_string(), "train", many, REPEAT, began);
        left -= many;
        if step % EVAL_INTERVAL == 0 && left > 0 {
            let many = left.min(EVAL_TASKS);
            push(format!("{step}/held_out"), "eval", many, 1, began + 0.6 * PACE);
            left -= many;
        }
    }
    batches
}

/// Outcome of a run, derived from its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    pub(crate) state: RunState,
    pub(crate) attempts: u32,
    pub(crate) seconds: f64,
    pub(crate) tokens: u64,
    pub(crate) turns: u64,
    pub(crate) reward: f64,
    pub(crate) after: f64,
    pub(crate) failure: usize,
}

/// Quality of the model after a step.
pub(crate) fn skill(step: u32) -> f64 {
    let step = f64::from(step);
    0.18 + 0.62 * (1.0 - (-step / 70.0).exp()) + 0.015 * (step / 3.0).sin()
}

pub(crate) fn plan(index: usize, step: u32) -> RunPlan {
    let draw = |stream| chance(index as u64, stream);
    // Lengths have a long tail, and long runs fail more often.
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
    RunPlan { state, attempts, seconds, tokens, turns, reward, after: draw(12) * 14.0, failure }
}

/// Returns the row of a run in its current state.
pub(crate) fn describe(
    batch: &DemoBatch,
    index: usize,
    state: RunState,
    began: f64,
    now: f64,
) -> RunRow {
    let plan = plan(index, batch.step);
    let at = (index - batch.first) as u32;
    let is_over = !matches!(state, RunState::Pending | RunState::Running);
    let has_begun = state != RunState::Pending;
    let good = state == RunState::Succeeded;
    let message = match state {
        RunState::Failed => Some(FAILURES[plan.failure.min(3)].1.to_owned()),
        RunState::Cancelled => Some("not needed".to_owned()),
        // The message of its first attempt.
        RunState::Succeeded if plan.attempts > 1 => {
            Some(FAILURES[plan.failure.min(3)].1.to_owned())
        }
        _ => None,
    };
    RunRow {
        batch: batch.name.clone(),
        task: at / batch.repeat,
        run: at % batch.repeat,
        kind: batch.kind.to_owned(),
        workflow: WORKFLOWS[at as usize / 4 % 3].to_owned(),
        state,
        attempts: if has_begun { plan.attempts } else { 0 },
        runner: has_begun.then_some((index % 64) as u32),
        begin: has_begun.then_some(began),
        end: is_over.then_some(began + plan.seconds),
        seconds: match state {
            RunState::Pending => None,
            RunState::Running => Some(now - began),
            _ => Some(plan.seconds),
        },
        reward: good.then_some(plan.reward),
        tokens: good.then_some(plan.tokens),
        turns: good.then_some(plan.turns),
        version: good.then_some(u64::from(batch.step.saturating_sub(1))),
        message,
    }
}
