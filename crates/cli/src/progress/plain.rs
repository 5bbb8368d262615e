//! Events of a job as text: one line for each step, evaluation and weight sync.

use rollway::explorer::JobEvent;
use rollway_base::human;
use rollway_core::TaskTally;

use super::format;
use super::model::{ProgressModel, REWARD_METRIC};

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
            let tasks = format::counted(*tasks_per_step, "task");
            let runners = format::counted(u64::from(*runners), "runner");
            Some(line + &format!(", {tasks} a step, {runners}, in {}", job_dir.display()))
        }
        JobEvent::StepDone { step, result, metrics, waited } => {
            let mut line = format!("step {step}");
            if let Some(total) = model.total_steps {
                line += &format!(" of {total}");
            }
            line += &format!(": {}", tasks(&result.tasks));
            if let Some(reward) = metrics.get(REWARD_METRIC) {
                line += &format!(", reward {}", format::score(reward));
            }
            line += &format!(", waited {}", human::duration(*waited));
            if let Some(left) =
                model.time_left().filter(|_| model.total_steps != Some(model.done_steps))
            {
                line += &format!(", about {} left", format::estimate(left));
            }
            Some(line)
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
