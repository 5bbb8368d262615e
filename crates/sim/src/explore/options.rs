//! Options of a world of explorers, drawn from its seed: plan, speeds and faults.

use std::time::Duration;

use rollway_core::explore::{PlanConfig, PlanStyle};

use crate::random::{FaultRate, SimRandom};

#[derive(Clone, Debug)]
pub(crate) struct ExploreWorldOptions {
    /// True if there are no faults.
    pub(crate) is_calm: bool,
    pub(crate) plan_config: PlanConfig,
    pub(crate) explorers: Vec<Duration>,
    /// Number of steps with tasks.
    pub(crate) tasks: u64,
    pub(crate) trainer: TrainerOptions,
    /// Heartbeat timeout.
    pub(crate) lease: Duration,
    /// Timeout of waits for weights.
    pub(crate) sync_timeout: Duration,
    /// Typical delay of a message.
    pub(crate) latency: Duration,
    /// Probability of a crash at each event.
    pub(crate) crash: FaultRate,
    /// Probability of a stop at each event.
    pub(crate) stop: FaultRate,
    /// Maximum number of crashes and stops of all explorers.
    pub(crate) crashes_max: u32,
    /// Probability that a step delivers too few experiences.
    pub(crate) loss: FaultRate,
}

#[derive(Clone, Debug)]
pub(crate) struct TrainerOptions {
    /// Duration of a train step.
    pub(crate) work: Duration,
    /// Time of its start. `None`: never.
    pub(crate) comes: Option<Duration>,
    pub(crate) steps_max: u64,
    /// Time of its crash, and the delay of its restart. `None`: never.
    pub(crate) crash: Option<(Duration, Option<Duration>)>,
    /// True if it reports its crash.
    pub(crate) reports_failure: bool,
    /// True if it reports its activity.
    pub(crate) reports_state: bool,
}

impl ExploreWorldOptions {
    pub(crate) fn draw(rng: &mut SimRandom) -> Self {
        let is_calm = rng.percent(20);
        let plan_config = plan_config(rng);
        let step = rng.spread(millis(200), millis(8_000));
        let explorers = (0..rng.between(1, 3)).map(|_| rng.spread(step / 4, step * 4)).collect();
        let lease = rng.spread(millis(4_000), millis(20_000));
        let mut options = Self {
            is_calm,
            explorers,
            tasks: u64::MAX,
            trainer: trainer(rng, step, lease),
            lease,
            // Enough for every calm world.
            sync_timeout: millis(100_000_000),
            latency: rng.spread(millis(1), millis(50)),
            crash: FaultRate::NEVER,
            stop: FaultRate::NEVER,
            crashes_max: rng.small(1, 6),
            loss: FaultRate::NEVER,
            plan_config,
        };
        if is_calm {
            options.trainer.comes = Some(Duration::ZERO);
            options.trainer.crash = None;
            options.trainer.reports_state = true;
            options.trainer.steps_max = u64::MAX;
            return options;
        }
        options.sync_timeout = rng.spread(step * 4, step * 400);
        options.crash = FaultRate(*rng.pick(&[0, 0, 100, 400, 1500]));
        options.stop = FaultRate(*rng.pick(&[0, 0, 100, 400]));
        options.loss = FaultRate::percent(*rng.pick(&[0, 0, 20, 60]));
        if rng.percent(25) {
            options.tasks = rng.between(0, options.plan_config.total_steps);
        }
        options
    }
}

fn plan_config(rng: &mut SimRandom) -> PlanConfig {
    let style = [
        PlanStyle::Fixed,
        PlanStyle::ExplorerDriven,
        PlanStyle::TrainerDriven,
        PlanStyle::FullyAsync,
        PlanStyle::FullyAsync,
    ];
    let step_experiences = rng.between(1, 16);
    PlanConfig {
        style: *rng.pick(&style),
        sync_interval: rng.between(1, 4),
        sync_offset: *rng.pick(&[0, 0, 1, 2, 3]),
        max_inflight: rng.between(1, 4),
        max_staleness: *rng.pick(&[None, Some(0), Some(1), Some(2), Some(4)]),
        step_experiences,
        train_batch_size: *rng.pick(&[step_experiences, step_experiences, step_experiences * 2, 5]),
        eval_interval: *rng.pick(&[None, Some(1), Some(2), Some(3), Some(4)]),
        eval_on_startup: rng.percent(70),
        eval_at_end: rng.percent(70),
        // A bit that no other draw depends on.
        eval_single_version: !rng.clone().below(1 << 32).is_multiple_of(4),
        total_steps: rng.between(0, 16),
    }
}

fn trainer(rng: &mut SimRandom, step: Duration, lease: Duration) -> TrainerOptions {
    let plan_config = if rng.percent(20) { step * 6 } else { step };
    let comes = match rng.below(10) {
        0 => None,
        1 | 2 => Some(rng.spread(step, step * 16)),
        _ => Some(rng.spread(millis(1), step)),
    };
    let crash = rng.percent(35).then(|| {
        let again = rng.percent(60).then(|| rng.spread(lease / 8, lease * 4));
        (rng.spread(step, step * 24), again)
    });
    TrainerOptions {
        work: rng.spread(plan_config / 8, plan_config * 2),
        comes,
        steps_max: if rng.percent(25) { rng.between(1, 12) } else { u64::MAX },
        crash,
        reports_failure: rng.percent(40),
        reports_state: rng.percent(85),
    }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
