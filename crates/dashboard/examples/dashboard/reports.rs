//! Servers, failures, metrics and configuration of the simulated job.

use std::collections::BTreeMap;

use rollway_telemetry::view::{
    ConfigReport, FailureRow, MetricRow, MetricSeries, RunKey, RunState, ServerErrorRow,
    ServerReport, ServerRow, WaitRow,
};
use serde_json::json;

use crate::demo::{Demo, World};
use crate::runs::{DemoBatch, FAILURES, chance, plan, skill};

pub(crate) fn servers(demo: &Demo, world: &World) -> ServerReport {
    if demo.state == "empty" {
        return ServerReport::default();
    }
    let now = demo.now();
    let is_dead = demo.state == "waiting";
    let is_done = |batch: &&DemoBatch| batch.kind == "train" && batch.is_over();
    let step = world.batches.iter().filter(is_done).count() as u64;
    let busy = world.running.len() as u64;
    let mut servers: Vec<ServerRow> = (1..=4_u64)
        .map(|number| {
            let state = match number {
                _ if is_dead => "unhealthy",
                3 => "unhealthy",
                4 => "updating",
                _ => "running",
            };
            let is_bad = state == "unhealthy";
            let message = "GET /health: connection refused";
            let errors = [("unreachable", 14), ("health_check", 9), ("http_503", 3)];
            let errors = errors.map(|(kind, count)| (kind.to_owned(), count));
            let draw = chance((now / 5.0) as u64, number);
            ServerRow {
                url: format!("http://node-{number}:8000"),
                model: "qwen3-4b".to_owned(),
                trained: true,
                engine: "vllm".to_owned(),
                server_model: Some("Qwen/Qwen3-4B".to_owned()),
                state: state.to_owned(),
                usable: !is_bad,
                message: is_bad.then(|| message.to_owned()),
                version: (state != "updating").then_some(step.saturating_sub(1)),
                in_flight: if state == "running" { busy / 2 } else { 0 },
                waiting: if is_dead { 61 } else { 0 },
                requests: 40_000 + 1_731 * number,
                tokens: 9_100_000 + 41_000 * number,
                tokens_per_second: Some(match state {
                    "running" => 8_600.0 + 900.0 * draw,
                    _ => 0.0,
                }),
                weight_updates: step.saturating_sub(1),
                errors: if is_bad { errors.into() } else { BTreeMap::new() },
                last_error: is_bad.then(|| ServerErrorRow {
                    at: now - 41.0,
                    kind: "unreachable".to_owned(),
                    message: "error sending request: tcp connect error: Connection refused"
                        .to_owned(),
                }),
                last_seen: Some(if is_bad { now - 78.0 } else { now - 1.0 }),
            }
        })
        .collect();
    servers.sort_by_key(|server| server.usable);
    ServerReport { at: Some(now), servers }
}

pub(crate) fn wait(demo: &Demo) -> Option<WaitRow> {
    let sentence = match demo.state.as_str() {
        "waiting" => "batch 3 waits for 1 of 64 runs: batch 3 task 7 run 2, in stage `sandbox`",
        _ => return None,
    };
    Some(WaitRow {
        reason: "runs".to_owned(),
        message: sentence.to_owned(),
        remedy: "`rollway top` shows every runner and cancels a single run".to_owned(),
        since: demo.now() - 95.0,
        until: None,
        key: None,
    })
}

pub(crate) fn failures(world: &World) -> Vec<FailureRow> {
    let mut groups: BTreeMap<usize, (u64, usize)> = BTreeMap::new();
    for index in (0..world.next).filter(|index| world.states[*index] == RunState::Failed) {
        let step = world.batches[world.batch_of(index)].step;
        let group = groups.entry(plan(index, step).failure.min(3)).or_default();
        *group = (group.0 + 1, index);
    }
    let row = |(failure, (count, index)): (usize, (u64, usize))| {
        let (kind, message) = FAILURES[failure];
        let batch = &world.batches[world.batch_of(index)];
        let at = (index - batch.first) as u32;
        let (task, run) = (at / batch.repeat, at % batch.repeat);
        FailureRow {
            kind: kind.to_owned(),
            message: message.to_owned(),
            count,
            at: world.began[index] + plan(index, batch.step).seconds,
            run: Some(RunKey { batch: batch.name.clone(), task, run }),
        }
    };
    let mut rows: Vec<FailureRow> = groups.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

/// Name, value at the start, change until the end, noise.
const CURVES: [(&str, f64, f64, f64); 16] = [
    ("rollout/reward/mean", 0.2, 0.6, 0.03),
    ("rollout/reward/min", 0.0, 0.4, 0.05),
    ("rollout/reward/max", 0.7, 0.3, 0.02),
    ("rollout/tool_calls/mean", 3.1, -1.7, 0.3),
    ("rollout/tool_calls/min", 1.0, 0.0, 0.0),
    ("rollout/tool_calls/max", 6.5, -2.5, 0.6),
    ("rollout/answer_length/mean", 310.0, 190.0, 24.0),
    ("rollout/format/mean", 0.55, 0.43, 0.02),
    ("rollout/time/run_execution/mean", 9.2, -2.1, 0.9),
    ("rollout/model_version", 0.0, 200.0, 0.0),
    ("experience_pipeline/stored_count", 1_870.0, 90.0, 40.0),
    ("trainer/loss", 0.42, -0.31, 0.03),
    ("trainer/entropy", 1.9, -1.2, 0.08),
    ("trainer/gradient", 0.9, -0.4, 0.2),
    ("trainer/learning_rate", 2e-6, -1.5e-6, 0.0),
    ("trainer/staleness", 0.6, 0.2, 0.5),
];

fn curve(world: &World, name: &str) -> Vec<(u64, f64)> {
    let Some(at) = CURVES.iter().position(|(known, ..)| *known == name) else { return Vec::new() };
    let (_, from, by, noise) = CURVES[at];
    let steps = world.batches.iter().filter(|batch| batch.kind == "train" && batch.is_over());
    let point = |step: u32| {
        let share = (skill(step) - 0.18) / 0.62;
        let wobble = noise * (chance(u64::from(step), 60 + at as u64) - 0.5);
        (u64::from(step), from + by * share + wobble)
    };
    steps.map(|batch| point(batch.step)).collect()
}

pub(crate) fn metrics(world: &World) -> Vec<MetricRow> {
    let row = |(name, ..): &(&str, f64, f64, f64)| {
        let points = curve(world, name);
        let (first, last) = (points.first()?, points.last()?);
        Some(MetricRow {
            name: (*name).to_owned(),
            count: points.len() as u64,
            first: first.1,
            last: last.1,
            step: last.0,
        })
    };
    let mut rows: Vec<MetricRow> = CURVES.iter().filter_map(row).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

pub(crate) fn series(world: &World, names: &[String]) -> Vec<MetricSeries> {
    let series = |name: &String| MetricSeries { name: name.clone(), points: curve(world, name) };
    names.iter().map(series).filter(|series| !series.points.is_empty()).collect()
}

pub(crate) fn config() -> ConfigReport {
    let config = json!({
        "name": "arithmetic-grpo",
        "mode": "both",
        "buffer": {
            "batch_size": 500,
            "train_batch_size": 2000,
            "explorer_input": { "taskset": { "path": "data/train.jsonl", "split": "train" } },
            "trainer_input": { "experience_buffer": { "path": "postgresql://(hidden)@db/rft" } },
        },
        "explorer": {
            "runner_per_model": 64,
            "max_timeout": 600,
            "rollout_model": {
                "base_url": "http://node-1:8000/v1",
                "api_key": "(hidden)",
                "api_key_env": "MODEL_KEY",
            },
            "env_vars": { "SANDBOX_KEY": "(hidden)" },
        },
        "synchronizer": { "sync_method": "checkpoint", "sync_interval": 1, "sync_timeout": 3600 },
        "alarms": { "stalled_after": 600 },
    });
    let changed = [
        "name",
        "buffer.batch_size",
        "buffer.train_batch_size",
        "buffer.explorer_input.taskset.path",
        "buffer.trainer_input.experience_buffer.path",
        "explorer.runner_per_model",
        "explorer.rollout_model.base_url",
        "explorer.rollout_model.api_key",
        "explorer.rollout_model.api_key_env",
        "explorer.env_vars.SANDBOX_KEY",
        "synchronizer.sync_method",
    ];
    ConfigReport { config, changed: changed.map(str::to_owned).into() }
}
