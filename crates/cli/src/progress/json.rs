//! Events of a job as JSON lines: one object each, with stable names.

use std::time::SystemTime;

use rollway::explorer::{JobEvent, JobWait};
use rollway_core::BatchResult;
use rollway_core::metrics::Metrics;
use serde_json::{Map, Value, json};

use super::ProgressEnd;
use super::model::ProgressModel;
use super::summary::FinalSummary;
use crate::log_line::timestamp;

/// Returns the object of an event.
pub fn event(event: &JobEvent, time: SystemTime) -> Value {
    let mut object = match event {
        JobEvent::Began { mode, job_dir, done_steps, total_steps, tasks_per_step, runners } => {
            json!({
                "event": "began",
                "mode": mode.name(),
                "job_dir": job_dir,
                "done_steps": done_steps,
                "total_steps": total_steps,
                "tasks_per_step": tasks_per_step,
                "runners": runners,
            })
        }
        JobEvent::StepBegun { step, tasks, runs } => json!({
            "event": "step_begun", "step": step, "tasks": tasks, "runs": runs,
        }),
        JobEvent::StepDone { step, result, metrics, waited } => json!({
            "event": "step_done",
            "step": step,
            "tasks": tasks(result),
            "runs_failed": failures(result),
            "delivered": result.delivered,
            "waited": waited.as_secs_f64(),
            "metrics": numbers(metrics),
        }),
        JobEvent::Evaluated { step, version, set, score, result, metrics } => json!({
            "event": "evaluated",
            "step": step,
            "version": version,
            "set": &**set,
            "score": score,
            "tasks": tasks(result),
            "runs_failed": failures(result),
            "metrics": numbers(metrics),
        }),
        JobEvent::Synced { step, version, waited, loading } => json!({
            "event": "synced",
            "step": step,
            "version": version,
            "waited": waited.as_secs_f64(),
            "loading": loading.as_secs_f64(),
        }),
        JobEvent::Trained { step, metrics } => json!({
            "event": "trained", "step": step, "metrics": numbers(metrics),
        }),
        JobEvent::Alarm(alarm) => json!({
            "event": "alarm",
            "kind": alarm.kind,
            "raised": alarm.raised,
            "message": alarm.message,
        }),
        JobEvent::WaitBegun(wait) => wait_json(wait, "wait_begun"),
        JobEvent::WaitEnded(wait) => wait_json(wait, "wait_ended"),
        JobEvent::Info(message) => json!({ "event": "info", "message": message }),
        JobEvent::Ready(_) => json!({ "event": "ready" }),
    };
    object["time"] = timestamp(time).into();
    object
}

/// Returns the object of the end of a job.
pub fn ended(
    model: &ProgressModel,
    summary: &FinalSummary,
    end: ProgressEnd,
    time: SystemTime,
) -> Value {
    let outcome = match end {
        ProgressEnd::Done => "done",
        ProgressEnd::Stopped => "stopped",
        ProgressEnd::Failed => "failed",
    };
    let score = |(step, score): (u64, f64)| json!({ "step": step, "score": score });
    let scores = summary.scores.iter().map(|(set, [first, last])| {
        (set.to_string(), json!({ "first": score(*first), "last": score(*last) }))
    });
    json!({
        "time": timestamp(time),
        "event": "ended",
        "outcome": outcome,
        "job_dir": model.title.job_dir,
        "steps": summary.steps,
        "trained": summary.trained,
        "tasks": summary.tasks,
        "tasks_failed": summary.failed,
        "tasks_cancelled": summary.cancelled,
        "runs_failed": summary.failures,
        "failures": summary.causes,
        "experiences": summary.experiences,
        "scores": scores.collect::<Map<_, _>>(),
        "tokens": summary.tokens,
        "seconds": summary.seconds,
    })
}

fn wait_json(wait: &JobWait, event: &str) -> Value {
    json!({
        "event": event,
        "reason": wait.reason.name(),
        "message": wait.reason.message(),
        "remedy": wait.reason.remedy(),
        "since": timestamp(wait.since),
        "timeout_key": wait.limit.as_ref().map(|limit| limit.key),
        "timeout": wait.limit.as_ref().map(|limit| limit.timeout.as_secs_f64()),
    })
}

fn tasks(result: &BatchResult) -> Value {
    let tasks = result.tasks;
    json!({
        "ok": tasks.ok,
        "partial": tasks.partial,
        "failed": tasks.failed,
        "cancelled": tasks.cancelled,
    })
}

fn failures(result: &BatchResult) -> Value {
    let kinds = result.runs.failed.nonzero();
    kinds.map(|(kind, count)| (kind.name().to_owned(), count.into())).collect::<Map<_, _>>().into()
}

/// Returns metrics as an object; NaN and infinity are null.
fn numbers(metrics: &Metrics) -> Value {
    metrics.iter().map(|(key, value)| (key.to_string(), value.into())).collect::<Map<_, _>>().into()
}
