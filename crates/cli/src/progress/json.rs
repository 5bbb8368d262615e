//! A job as JSON lines: one object for each event, with names that stay.

use std::time::SystemTime;

use rollway::explorer::Event;
use rollway_core::BatchResult;
use rollway_core::metrics::Metrics;
use serde_json::{Map, Value, json};

use super::model::ProgressModel;
use super::summary::FinalSummary;
use super::{ProgressEnd, format};
use crate::log_line::timestamp;

/// Returns the object of an event.
pub fn event(event: &Event, at: SystemTime) -> Value {
    let mut object = match event {
        Event::Began { mode, job_dir, done_steps, total_steps, tasks_per_step, runners } => json!({
            "event": "began",
            "mode": format::mode(*mode),
            "job_dir": job_dir,
            "done_steps": done_steps,
            "total_steps": total_steps,
            "tasks_per_step": tasks_per_step,
            "runners": runners,
        }),
        Event::StepBegun { step, tasks, runs } => json!({
            "event": "step_begun", "step": step, "tasks": tasks, "runs": runs,
        }),
        Event::StepDone { step, result, metrics, waited } => json!({
            "event": "step_done",
            "step": step,
            "tasks": tasks(result),
            "runs_failed": failures(result),
            "delivered": result.delivered,
            "waited": waited.as_secs_f64(),
            "metrics": numbers(metrics),
        }),
        Event::Evaluated { step, version, set, score, result, metrics } => json!({
            "event": "evaluated",
            "step": step,
            "version": version,
            "set": &**set,
            "score": score,
            "tasks": tasks(result),
            "runs_failed": failures(result),
            "metrics": numbers(metrics),
        }),
        Event::Synced { step, version, waited, loading } => json!({
            "event": "synced",
            "step": step,
            "version": version,
            "waited": waited.as_secs_f64(),
            "loading": loading.as_secs_f64(),
        }),
        Event::Trained { step, metrics } => json!({
            "event": "trained", "step": step, "metrics": numbers(metrics),
        }),
        Event::Alarm(alarm) => json!({
            "event": "alarm",
            "kind": alarm.kind,
            "raised": alarm.raised,
            "message": alarm.words,
        }),
        Event::Note(message) => json!({ "event": "note", "message": message }),
        Event::Pulse(_) => json!({ "event": "ready" }),
    };
    object["time"] = timestamp(at).into();
    object
}

/// Returns the object of a job's end.
pub fn ended(
    screen: &ProgressModel,
    account: &FinalSummary,
    ending: ProgressEnd,
    at: SystemTime,
) -> Value {
    let ending = match ending {
        ProgressEnd::Done => "done",
        ProgressEnd::Stopped => "stopped",
        ProgressEnd::Failed => "failed",
    };
    let score = |(step, score): (u64, f64)| json!({ "step": step, "score": score });
    let scores = account.scores.iter().map(|(set, [first, last])| {
        (set.to_string(), json!({ "first": score(*first), "last": score(*last) }))
    });
    json!({
        "time": timestamp(at),
        "event": "ended",
        "ending": ending,
        "job_dir": screen.title.job_dir,
        "steps": account.steps,
        "trained": account.trained,
        "tasks": account.tasks,
        "tasks_failed": account.failed,
        "tasks_cut": account.cut,
        "runs_failed": account.failures,
        "experiences": account.experiences,
        "scores": scores.collect::<Map<_, _>>(),
        "tokens": account.tokens,
        "seconds": account.seconds,
    })
}

fn tasks(result: &BatchResult) -> Value {
    let tasks = result.tasks;
    json!({
        "ok": tasks.ok, "partial": tasks.partial, "failed": tasks.failed, "cut": tasks.cancelled,
    })
}

fn failures(result: &BatchResult) -> Value {
    let kinds = result.runs.failed.nonzero();
    kinds.map(|(kind, count)| (kind.name().to_owned(), count.into())).collect::<Map<_, _>>().into()
}

/// What is no number, or without end, is null: JSON has no word for it.
fn numbers(metrics: &Metrics) -> Value {
    metrics.iter().map(|(key, value)| (key.to_string(), value.into())).collect::<Map<_, _>>().into()
}
