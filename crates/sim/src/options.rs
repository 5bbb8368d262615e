//! Options of a world, drawn from its seed: configuration of the core, faults, sizes and users.
//! Limits are small enough to be reached.

use std::time::Duration;

use rollway_core::{
    BatchPolicy, CoreConfig, CoreLimits, DynamicTimeout, FailureClass, FailureKind, FailurePolicy,
    FailureRule, GroupPolicy, OnExhausted, OverRollout, ScalingBounds, Supervision,
};

use crate::faults::FaultPlan;
use crate::random::SimRandom;

#[derive(Clone, Debug)]
pub struct WorldOptions {
    pub config: CoreConfig,
    pub faults: FaultPlan,
    pub shape: WorldShape,
}

#[derive(Clone, Debug)]
pub struct WorldShape {
    /// Duration of the phase with faults.
    pub length: Duration,
    pub run: Duration,
    /// Typical delay of a message.
    pub latency: Duration,
    /// Interval of a runner's heartbeats.
    pub heartbeat: Duration,
    /// Typical pause of a user.
    pub think: Duration,
    /// Typical bytes of a run's payload.
    pub payload: u64,
    /// Users that submit and finalize.
    pub coordinators: u32,
    /// Users that schedule and collect.
    pub schedulers: u32,
    /// Users that send requests about other users' batches.
    pub meddlers: u32,
    /// Users that stop, start and wait for all tasks.
    pub operators: u32,
    /// Runners per machine.
    pub machine: u32,
    /// Maximum requests of one user.
    pub requests: u32,
    /// Maximum open batches of one user.
    pub window: u32,
    /// Maximum tasks of one request.
    pub tasks: u32,
    /// Maximum runs of one task; may exceed the limit.
    pub repeats: u32,
}

impl WorldOptions {
    pub fn draw(rng: &mut SimRandom) -> Self {
        let faults = FaultPlan::draw(rng);
        let max_timeout = rng.spread(millis(500), millis(20_000));
        let shape = shape(rng, max_timeout);
        let config = config(rng, max_timeout, &shape);
        let heartbeat =
            config.supervision.heartbeat_timeout.map_or(millis(4_000), |timeout| timeout / 3);
        Self { config, faults, shape: WorldShape { heartbeat, ..shape } }
    }
}

fn shape(rng: &mut SimRandom, max_timeout: Duration) -> WorldShape {
    let run = max_timeout / rng.small(8, 200);
    WorldShape {
        length: rng.spread(millis(15_000), millis(400_000)),
        run,
        latency: rng.spread(millis(1), millis(20)),
        heartbeat: Duration::ZERO,
        think: rng.spread(run, run * 40),
        payload: rng.between(10, 2_000),
        coordinators: rng.small(0, 3).max(1),
        schedulers: rng.small(0, 2),
        meddlers: u32::from(rng.percent(50)),
        operators: u32::from(rng.percent(50)),
        machine: rng.small(2, 4),
        requests: rng.small(10, 80),
        window: rng.small(1, 5),
        tasks: rng.small(1, 8),
        repeats: rng.small(1, 8),
    }
}

fn config(rng: &mut SimRandom, max_timeout: Duration, shape: &WorldShape) -> CoreConfig {
    let runners = rng.small(1, 8);
    CoreConfig {
        runners,
        scaling: scaling(rng, shape),
        max_repeat_times_per_runner: if rng.percent(60) { Some(rng.small(1, 4)) } else { None },
        runs_in_turn: rng.percent(50),
        max_timeout,
        default_timeout: rng.spread(max_timeout.max(millis(2_000)), max_timeout * 8),
        failures: failures(rng),
        over_rollout: OverRollout {
            wait_after_min: zero_or(rng, millis(10), millis(5_000)),
            return_partial_tasks: rng.percent(50),
        },
        train: policy(rng),
        eval: policy(rng),
        dynamic_timeout: DynamicTimeout {
            enable: rng.percent(50),
            warmup_min_steps: rng.small(0, 2),
            min_samples: rng.small(1, 8),
            window: rng.small(1, 16),
            ratio: f64::from(rng.small(4, 16)) / 4.0,
            floor: rng.spread(millis(100), millis(1_000)),
        },
        supervision: supervision(rng),
        runners_per_worker: if rng.percent(50) { rng.small(2, 4) } else { 1 },
        delivery_timeout: rng.spread(millis(500), millis(10_000)),
        limits: limits(rng, runners, shape),
        ledger: rng.percent(75),
        epoch: 0,
    }
}

/// Scales the pool in some worlds.
fn scaling(rng: &mut SimRandom, shape: &WorldShape) -> Option<ScalingBounds> {
    if !rng.percent(30) {
        return None;
    }
    let together = rng.small(1, 3);
    let min = rng.small(1, 3) * together;
    let max = min + rng.small(0, 3) * together;
    let quiet = rng.spread(shape.run, shape.length / 8);
    Some(ScalingBounds { min, max, runners_per_worker: together, idle_timeout: quiet })
}

fn failures(rng: &mut SimRandom) -> FailurePolicy {
    let fails_batches = rng.percent(20);
    let mut rule = |kind: FailureKind| FailureRule {
        retries: match kind.class() {
            FailureClass::Task => rng.small(0, 3),
            FailureClass::Infrastructure => rng.small(0, 10),
        },
        backoff: zero_or(rng, millis(10), millis(2_000)),
        then: if fails_batches && rng.percent(40) {
            OnExhausted::FailBatch
        } else {
            OnExhausted::FailRun
        },
    };
    FailurePolicy {
        rules: std::array::from_fn(|kind| rule(FailureKind::ALL[kind])),
        poison_limit: rng.small(1, 4),
        groups: if rng.percent(30) { GroupPolicy::Whole } else { GroupPolicy::Partial },
    }
}

fn policy(rng: &mut SimRandom) -> BatchPolicy {
    BatchPolicy {
        quorum_percent: if rng.percent(40) { Some(rng.small(0, 100) as u8) } else { None },
        success_min_percent: if rng.percent(25) { rng.small(1, 100) as u8 } else { 0 },
    }
}

fn supervision(rng: &mut SimRandom) -> Supervision {
    let silence = rng.spread(millis(3_000), millis(15_000));
    let backoff = zero_or(rng, millis(10), millis(1_000));
    Supervision {
        start_timeout: rng.spread(millis(500), millis(10_000)),
        begin_timeout: rng.spread(millis(200), millis(5_000)),
        heartbeat_timeout: if rng.percent(80) { Some(silence) } else { None },
        cancel_grace: rng.spread(millis(50), millis(3_000)),
        restart_backoff: backoff,
        max_restart_backoff: rng.spread(backoff.max(millis(1)), millis(10_000)),
        max_start_failures: rng.small(1, 4),
        broken_retry_delay: rng.spread(millis(500), millis(10_000)),
        other_runner_wait: zero_or(rng, millis(10), millis(3_000)),
    }
}

fn limits(rng: &mut SimRandom, runners: u32, shape: &WorldShape) -> CoreLimits {
    let mut tight = |percent: u32, low: u64, high: u64, wide: u64| {
        if rng.percent(percent) { rng.between(low, high) } else { wide }
    };
    CoreLimits {
        batches: tight(20, 1, 4, 60) as u32,
        open_tasks: tight(15, 4, 30, 10_000),
        runs_per_task: tight(10, 1, 6, 64) as u32,
        waiters: tight(15, 2, 6, 1_000) as u32,
        runners: tight(20, runners.into(), u64::from(runners) + 2, 64) as u32,
        payload_bytes: tight(30, shape.payload * 2, shape.payload * 24, 1 << 40),
        payload_bytes_per_run: shape.payload * 8,
        message_bytes: tight(20, 1, 16, 64) as u32,
        metrics_per_run: tight(20, 2, 4, 16) as u32,
        terminal_batches: tight(50, 0, 4, 64) as u32,
        workflows: tight(20, 1, 2, 16) as u32,
    }
}

fn zero_or(rng: &mut SimRandom, low: Duration, high: Duration) -> Duration {
    if rng.percent(30) { Duration::ZERO } else { rng.spread(low, high) }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
