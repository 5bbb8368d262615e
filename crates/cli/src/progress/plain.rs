//! Events of a job as text: one line for each step, evaluation and weight sync.

use rollway::config::Mode;
use rollway::explorer::JobEvent;
use rollway_base::human;
use rollway_core::TaskTally;

use super::format;
use super::model::{ProgressModel, REWARD_METRIC};

/// Metrics in the line of a train step.
const TRAIN_METRICS: [(&str, &str); 2] = [("trainer/loss", "loss"), ("trainer/reward", "reward")];

/// Returns the line of an event that the model has applied. `None`: the event has no line.
pub fn event(model: &ProgressModel, event: &JobEvent) -> Option<String> {
    match event {
        JobEvent::Began { mode, job_dir, done_steps, total_steps, tasks_per_step, runners } => {
            let mut line = format!("{}: mode {}", model.title.name, mode.name());
            if let Some(total) = total_steps {
                line += &format!(", {}", format::counted(*total, "step"));
            }
            if *done_steps > 0 {
                line += &format!(" of which {done_steps} are done");
            }
            if *mode != Mode::Train {
                let tasks = format::counted(*tasks_per_step, "task");
                let runners = format::counted(u64::from(*runners), "runner");
                line += &format!(", {tasks} a step, {runners}");
            }
            Some(line + &format!(", in {}", job_dir.display()))
        }
        JobEvent::StepDone { step, result, metrics, waited } => {
            let mut line = format!("{}: {}", step_of(model, *step), tasks(&result.tasks));
            if let Some(reward) = metrics.get(REWARD_METRIC) {
                line += &format!(", reward {}", format::score(reward));
            }
            line += &format!(", waited {}", human::duration(*waited));
            Some(line + &time_left(model))
        }
        // In other modes, its step has a line.
        JobEvent::Trained { step, metrics } if model.title.mode == Mode::Train => {
            let shown = TRAIN_METRICS.iter().filter_map(|(metric, label)| {
                Some(format!(", {label} {}", format::score(metrics.get(metric)?)))
            });
            let shown: String = shown.collect();
            Some(format!("train {}{shown}{}", step_of(model, *step), time_left(model)))
        }
        JobEvent::Evaluated { step, version, set, score, result, .. } => {
            let score = score.map_or_else(|| "no score".to_owned(), format::score);
            let tasks = tasks(&result.tasks);
            Some(format!("eval at step {step} on {set}: {score}, {tasks}, version {version}"))
        }
        JobEvent::Synced { step, version, waited, loading } => {
            let (waited, loading) = (human::duration(*waited), human::duration(*loading));
            Some(format!(
                "weights after step {step}: version {version}, waited {waited}, loaded in {loading}"
            ))
        }
        JobEvent::Ready(_)
        | JobEvent::WaitBegun(_)
        | JobEvent::WaitEnded(_)
        | JobEvent::StepBegun { .. }
        | JobEvent::Trained { .. }
        | JobEvent::Info(_)
        | JobEvent::Alarm(_) => None,
    }
}

fn step_of(model: &ProgressModel, step: u64) -> String {
    match model.total_steps {
        Some(total) => format!("step {step} of {total}"),
        None => format!("step {step}"),
    }
}

/// Returns the estimated remaining time as the end of a line.
fn time_left(model: &ProgressModel) -> String {
    let left = model.time_left().filter(|_| model.total_steps != Some(model.done_steps));
    left.map(|left| format!(", about {} left", format::estimate(left))).unwrap_or_default()
}

fn tasks(tally: &TaskTally) -> String {
    let mut line = format::counted(tally.total(), "task");
    for (count, label) in
        [(tally.partial, "partial"), (tally.failed, "failed"), (tally.cancelled, "cancelled")]
    {
        if count > 0 {
            line += &format!(", {count} {label}");
        }
    }
    line
}
