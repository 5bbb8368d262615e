//! Aggregates of the simulated job.

use std::collections::BTreeMap;

use rollway_telemetry::view::{
    AlarmRow, BatchRow, BiasGroup, BiasReport, EvalPoint, HistogramBin, Overview, RewardPoint,
    RunCounts, RunState, RunnerCounts, RunnerRow, ServerSummary, StatsSample, TaskCounts, Timeline,
    TimelineLane, TimelineSpan, WasteReport,
};

use crate::demo::{Demo, RUNNERS, World};
use crate::reports;
use crate::runs::{FAILURES, PACE, chance, plan, skill};

/// Seconds of the curves.
const SECONDS: u64 = 600;

/// Seconds after which a run is stuck.
const STUCK_AFTER: f64 = 1200.0;

pub(crate) fn overview(demo: &Demo, world: &World) -> Overview {
    let now = demo.now();
    let mut runs = RunCounts { submitted: world.states.len() as u64, ..RunCounts::default() };
    let (mut good, mut tasks) = (0, TaskCounts::default());
    for batch in &world.batches {
        good += batch.runs.succeeded;
        runs.pending += batch.runs.pending;
        runs.running += batch.runs.running;
        let lost = batch.runs.failed;
        for (at, (kind, _)) in FAILURES.iter().enumerate() {
            let share = [0.52, 0.28, 0.14, 0.06][at];
            *runs.failed.entry((*kind).to_owned()).or_default() += (lost as f64 * share) as u64;
        }
        let reason = if batch.aborted { "batch_aborted" } else { "not_needed" };
        *runs.cancelled.entry(reason.to_owned()).or_default() += batch.runs.cancelled;
        tasks.submitted += u64::from(batch.tasks);
        tasks.finished += if batch.is_over() { u64::from(batch.tasks) - lost / 4 } else { 0 };
    }
    runs.succeeded = good;
    runs.failed.retain(|_, number| *number > 0);
    runs.cancelled.retain(|_, number| *number > 0);
    let live = demo.is_running();
    let busy = world.running.len() as u64;
    Overview {
        now,
        samples: samples(now, world, &runs),
        rewards: rewards(world),
        evals: evals(world),
        waste: WasteReport {
            retried: counts(&[("workflow", good / 61), ("runner_lost", good / 240)]),
            seconds_useful: good as f64 * 9.1,
            seconds_lost: [("failed", 0.21), ("cancelled", 0.33), ("retried", 0.12)]
                .map(|(reason, share)| (reason.to_owned(), good as f64 * share))
                .into(),
            experiences_dropped: counts(&[("same_reward", good / 9), ("too_long", good / 310)]),
        },
        runners: RunnerCounts {
            idle: if live { RUNNERS as u64 - busy.min(RUNNERS as u64) } else { 0 },
            busy,
            ..RunnerCounts::default()
        },
        wait: reports::wait(demo),
        servers: if live {
            reports::servers(demo, world).summary()
        } else {
            ServerSummary::default()
        },
        failures: reports::failures(world),
        alarms: alarms(demo),
        dropped: BTreeMap::new(),
        runs,
        tasks,
    }
}

fn counts(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let some = all.iter().filter(|(_, number)| *number > 0);
    some.map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

fn samples(now: f64, world: &World, runs: &RunCounts) -> Vec<StatsSample> {
    let failed: u64 = runs.failed.values().sum();
    let cancelled: u64 = runs.cancelled.values().sum();
    if world.states.is_empty() {
        return Vec::new();
    }
    let mut samples = Vec::new();
    let end = now.floor();
    let (mut done, mut lost, mut cut) = (runs.succeeded, failed, cancelled);
    let (mut prompts, mut answers) = (done * 310, done * 452);
    for back in 0..SECONDS {
        let at = end - back as f64;
        let wave = 1.0 + 0.25 * (at / 41.0 * std::f64::consts::TAU).sin();
        let jitter = chance(at as u64, 3);
        let here = (44.0 * wave + 9.0 * jitter) as u64;
        let busy = (RUNNERS as f64 * (0.93 + 0.07 * jitter)) as u64;
        let pending = runs.pending + (700.0 * ((at / PACE).fract())) as u64;
        samples.push(StatsSample {
            at,
            done,
            failed: lost,
            cancelled: cut,
            running: busy,
            pending,
            busy,
            runners: RUNNERS as u64,
            prompt_tokens: prompts,
            answer_tokens: answers,
        });
        done = done.saturating_sub(here);
        lost = lost.saturating_sub(u64::from(jitter > 0.4) + u64::from(jitter > 0.9));
        cut = cut.saturating_sub(u64::from(chance(at as u64, 5) > 0.5));
        prompts = prompts.saturating_sub(here * 290);
        answers = answers.saturating_sub(here * (400 + (100.0 * jitter) as u64));
    }
    samples.reverse();
    samples
}

fn rewards(world: &World) -> Vec<RewardPoint> {
    let over = world.batches.iter().filter(|batch| batch.kind == "train" && batch.is_over());
    over.map(|batch| {
        let mean = batch.rewards / (batch.runs.succeeded.max(1)) as f64;
        let spread = 0.10 + 0.05 * chance(u64::from(batch.step), 9);
        RewardPoint {
            step: u64::from(batch.step),
            at: batch.began + 1.2 * PACE,
            mean: Some(mean),
            min: Some((mean - spread).max(0.0)),
            max: Some((mean + spread).min(1.0)),
        }
    })
    .collect()
}

fn evals(world: &World) -> Vec<EvalPoint> {
    let over = world.batches.iter().filter(|batch| batch.kind == "eval" && batch.is_over());
    over.flat_map(|batch| {
        let point = |set: &str, score: f64| EvalPoint {
            step: u64::from(batch.step),
            at: batch.began + PACE,
            set: set.to_owned(),
            score: Some(score),
        };
        let hard = skill(batch.step).powi(2) * 0.8 + 0.02 * chance(u64::from(batch.step), 11);
        [point("held_out", batch.rewards / batch.runs.succeeded.max(1) as f64), point("hard", hard)]
    })
    .collect()
}

pub(crate) fn alarms(demo: &Demo) -> Vec<AlarmRow> {
    if !demo.is_running() {
        return Vec::new();
    }
    let message =
        "3 runs have made no progress for more than 20 min, all while they wait for the model";
    let at = (demo.now() / 60.0).floor() * 60.0 - 60.0;
    vec![AlarmRow { at, kind: "no_progress".to_owned(), message: message.to_owned(), raised: true }]
}

pub(crate) fn timeline(demo: &Demo, world: &World) -> Timeline {
    let now = demo.now();
    let mut lanes: Vec<TimelineLane> = ["steps", "evals", "syncs", "training"]
        .map(|name| TimelineLane { name: name.to_owned(), spans: Vec::new() })
        .into();
    for batch in &world.batches {
        let has_begun = batch.runs.running + batch.runs.succeeded > 0;
        if !has_begun {
            continue;
        }
        let over = batch.is_over();
        let long = PACE * (1.15 + 0.3 * chance(u64::from(batch.step), 20));
        let end = over.then_some((batch.began + long).min(now - 1.0));
        let state = match (batch.aborted, over) {
            (true, _) => "interrupted",
            (false, true) => "done",
            (false, false) => "running",
        };
        let span = |name: String, begin: f64, end: Option<f64>, state: &str, detail: String| {
            TimelineSpan {
                id: name.clone(),
                name,
                step: u64::from(batch.step),
                begin,
                end,
                state: state.to_owned(),
                detail,
            }
        };
        let runs = batch.runs;
        let detail = format!("{} tasks, {} runs failed", batch.tasks, runs.failed);
        if batch.kind == "eval" {
            let name = format!("eval {} held_out", batch.step);
            lanes[1].spans.push(span(name, batch.began, end, state, detail));
            continue;
        }
        lanes[0].spans.push(span(format!("step {}", batch.step), batch.began, end, state, detail));
        let Some(end) = end else { continue };
        let detail = format!("version {}", batch.step);
        let train = (end + 1.0, end + 1.0 + 0.62 * PACE);
        if train.1 < now {
            let name = format!("train {}", batch.step);
            let loss = format!("loss {:.4}", 0.4 * (-f64::from(batch.step) / 90.0).exp());
            lanes[3].spans.push(span(name, train.0, Some(train.1), "done", loss));
            let sync = (train.1 + 0.4, train.1 + 3.1);
            let name = format!("sync {}", batch.step);
            lanes[2].spans.push(span(name, sync.0, Some(sync.1), "done", detail));
        }
    }
    Timeline { now, lanes }
}

pub(crate) fn batches(demo: &Demo, world: &World) -> Vec<BatchRow> {
    let now = demo.now();
    let seen = world.batches.iter().filter(|batch| batch.runs.running + batch.runs.succeeded > 0);
    let pending =
        world.batches.iter().filter(|batch| batch.runs.running + batch.runs.succeeded == 0).take(2);
    let mut all: Vec<BatchRow> = seen
        .chain(pending)
        .map(|batch| {
            let over = batch.is_over();
            let begun = batch.runs.running + batch.runs.succeeded > 0;
            BatchRow {
                batch: batch.name.clone(),
                kind: batch.kind.to_owned(),
                state: match (batch.aborted, over, begun) {
                    (true, ..) => "aborted",
                    (_, true, _) => "finalized",
                    (_, _, true) => "running",
                    _ => "pending",
                }
                .to_owned(),
                began: batch.began.min(now),
                ended: over.then_some((batch.began + 1.3 * PACE).min(now)),
                tasks: u64::from(batch.tasks),
                runs: batch.runs,
                reward: (batch.runs.succeeded > 0)
                    .then(|| batch.rewards / batch.runs.succeeded as f64),
                waiting_for: match (over, begun) {
                    (true, _) => None,
                    (_, true) => Some(format!("{} runs", batch.runs.running + batch.runs.pending)),
                    _ => Some("the batch before it".to_owned()),
                },
            }
        })
        .collect();
    all.reverse();
    all
}

const STAGES: [&str; 5] = [
    "waits for the model",
    "runs the workflow",
    "calls the tool `calculator`",
    "computes the reward",
    "waits for the model",
];

pub(crate) fn runners(demo: &Demo, world: &World) -> Vec<RunnerRow> {
    let now = demo.now();
    if !demo.is_running() {
        return Vec::new();
    }
    let mut all: Vec<RunnerRow> = (0..RUNNERS)
        .map(|number| {
            let Some(&index) = world.running.get(number) else {
                return RunnerRow {
                    runner: number as u32,
                    incarnation: 1,
                    state: "idle".to_owned(),
                    age: 2.0,
                    last_heartbeat: Some(now - 0.8),
                    ..RunnerRow::default()
                };
            };
            let run = world.describe(index, now);
            let age = now - world.began[index];
            let stuck = age > STUCK_AFTER;
            let draw = chance(index as u64, 30);
            let stage = if stuck { 0 } else { (draw * 5.0) as usize };
            RunnerRow {
                runner: number as u32,
                incarnation: 1 + (draw * 3.0) as u32,
                state: "busy".to_owned(),
                location: Some(format!("node-{}", number % 4 + 1)),
                stage: Some(STAGES[stage].to_owned()),
                stage_for: Some(if stuck { age - 4.2 } else { age * draw }),
                age,
                batch: Some(run.batch),
                task: Some(run.task),
                run: Some(run.run),
                attempt: Some(u64::from(run.attempts)),
                model: Some("qwen3-4b".to_owned()),
                server: Some(format!("http://node-{}:8000", number % 2 + 1)),
                calls: 1 + (draw * 6.0) as u64,
                last_heartbeat: Some(now - 5.0 * chance(number as u64, 31)),
                message: stuck.then(|| "much longer than the typical duration".to_owned()),
                stuck,
                ..RunnerRow::default()
            }
        })
        .collect();
    all.sort_by(|a, b| b.stuck.cmp(&a.stuck).then(b.age.total_cmp(&a.age)));
    all
}

pub(crate) fn bias(world: &World) -> BiasReport {
    let names = ["dispatched", "trained", "failed", "cancelled"];
    let mut values: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    // A tenth is enough.
    for index in (0..world.next).step_by(10) {
        let plan = plan(index, 50);
        let group = match world.states[index] {
            RunState::Succeeded => "trained",
            RunState::Failed => "failed",
            RunState::Cancelled => "cancelled",
            _ => continue,
        };
        for (field, value) in [("tokens", plan.tokens as f64), ("seconds", plan.seconds)] {
            values.entry((field, "dispatched")).or_default().push(value);
            values.entry((field, group)).or_default().push(value);
        }
    }
    let mut bias =
        BiasReport { fields: vec!["tokens".into(), "seconds".into()], ..BiasReport::default() };
    for (field, most) in [("tokens", 1600.0), ("seconds", 32.0)] {
        let groups = names.map(|name| {
            let group = values.remove(&(field, name)).unwrap_or_default();
            (name.to_owned(), measured(group, most))
        });
        bias.groups.insert(field.to_owned(), groups.into());
    }
    bias
}

fn measured(mut values: Vec<f64>, most: f64) -> BiasGroup {
    const BINS: usize = 32;
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get((share * values.len() as f64) as usize).copied();
    let wide = most / BINS as f64;
    let mut histogram: Vec<HistogramBin> = (0..BINS)
        .map(|bin| HistogramBin { from: bin as f64 * wide, to: (bin + 1) as f64 * wide, count: 0 })
        .collect();
    for value in &values {
        histogram[((value / wide) as usize).min(BINS - 1)].count += 10;
    }
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    BiasGroup {
        count: 10 * values.len() as u64,
        mean: (!values.is_empty()).then_some(mean),
        p10: at(0.1),
        p50: at(0.5),
        p90: at(0.9),
        histogram,
    }
}
