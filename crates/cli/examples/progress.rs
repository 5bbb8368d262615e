//! Plays a scripted job, to see the progress view without a real one.
//!
//! ```text
//! cargo run -p rollway-cli --example progress -- [--steps 60] [--seconds 20]
//!     [--log auto|plain|json] [--sets 1] [--name …] [--fail] [--stop]
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use clap::Parser;
use rollway::config::{LogLevel, Mode};
use rollway::explorer::{JobEvent, JobObserver, StatsSample};
use rollway_cli::log;
use rollway_cli::output::{LogFormat, Output};
use rollway_cli::progress::{JobTitle, ProgressEnd, ProgressView};
use rollway_core::{
    BatchId, BatchKey, BatchResult, BatchState, BatchType, ByCancelReason, ByDropReason,
    ByFailureKind, FailureKind, RunTally, TaskTally,
};

/// Runs of a task.
const REPEAT: u64 = 8;

/// Tasks of a step.
const TASKS: u64 = 24;

/// Runners.
const RUNNERS: u64 = 16;

#[derive(Debug, Parser)]
struct Args {
    /// Steps of the job
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// Duration in seconds
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Format of standard error
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
    /// Number of evaluation sets
    #[arg(long, default_value_t = 1)]
    sets: usize,
    /// Name of the job
    #[arg(long, default_value = "arithmetic")]
    name: String,
    /// Whether runs fail
    #[arg(long)]
    fail: bool,
    /// Whether the job is stopped half-way
    #[arg(long)]
    stop: bool,
}

/// State of the scripted job.
struct Playback {
    args: Args,
    view: Arc<ProgressView>,
    sample: StatsSample,
    /// State of the random number generator.
    rng: u64,
}

fn main() {
    let args = Args::parse();
    let output = Output::stderr(args.log);
    log::install(LogLevel::Info, &output, None);
    let job_dir = PathBuf::from("checkpoints/Rollway").join(&args.name);
    let title = JobTitle {
        name: args.name.clone(),
        mode: Mode::Both,
        model: "tiny".to_owned(),
        curves: Some(job_dir.join("monitor/tensorboard")),
        job_dir: job_dir.clone(),
        source: Some(PathBuf::from("examples/arithmetic.yaml")),
    };
    let view = ProgressView::start(title, &output);
    let mut play = Playback { view, args, sample: StatsSample::default(), rng: 7 };
    sleep(Duration::from_millis(600));
    play.view.on_event(&JobEvent::Began {
        mode: Mode::Both,
        job_dir,
        done_steps: 0,
        total_steps: Some(play.args.steps),
        tasks_per_step: TASKS,
        runners: RUNNERS as u32,
    });
    play.sample.runners = RUNNERS as u32;
    play.evaluate(0);
    let steps = if play.args.stop { play.args.steps / 2 } else { play.args.steps };
    for step in 1..=steps {
        play.step(step);
    }
    play.view.end(if play.args.stop { ProgressEnd::Stopped } else { ProgressEnd::Done }, None);
}

impl Playback {
    fn random(&mut self) -> f64 {
        self.rng = self.rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.rng >> 40) as f64 / (1 << 24) as f64
    }

    /// Returns the skill of the model after some steps, from 0 to 1.
    fn skill(&self, step: u64) -> f64 {
        let part = step as f64 / self.args.steps as f64;
        0.31 + 0.65 / (1.0 + (-9.0 * (part - 0.45)).exp())
    }

    fn step(&mut self, step: u64) {
        let runs = TASKS * REPEAT;
        self.view.on_event(&JobEvent::StepBegun { step, tasks: TASKS, runs });
        self.sample.pending += runs;
        let slices = (self.args.seconds * 16.0 / self.args.steps as f64).ceil().max(1.0) as u64;
        let pause = self.args.seconds / self.args.steps as f64 / slices as f64;
        let mut failed = 0;
        for slice in 1..=slices {
            let ended = runs * slice / slices - runs * (slice - 1) / slices;
            let bad = u64::from(self.args.fail && self.random() < 0.3).min(ended);
            failed += bad;
            self.sample.pending = self.sample.pending.saturating_sub(ended);
            self.sample.running = self.sample.pending.min(RUNNERS);
            self.sample.busy = self.sample.running as u32;
            self.sample.done += ended - bad;
            self.sample.failed += bad;
            self.sample.answer_tokens += ended * 37;
            let shown =
                StatsSample { pending: self.sample.pending - self.sample.running, ..self.sample };
            self.view.on_sample(shown);
            sleep(Duration::from_secs_f64(pause));
        }
        let reward = self.skill(step) + 0.12 * (self.random() - 0.5);
        self.view.on_event(&JobEvent::StepDone {
            step,
            result: Arc::new(result(TASKS, runs, failed)),
            metrics: [("rollout/reward/mean", reward)].into_iter().collect(),
            waited: Duration::from_secs_f64(pause),
        });
        self.view.on_event(&JobEvent::Trained {
            step,
            metrics: [("trainer/loss", 0.1)].into_iter().collect(),
        });
        self.view.on_event(&JobEvent::Synced {
            step,
            version: step,
            waited: Duration::from_millis(310),
            loading: Duration::from_millis(42),
        });
        if self.args.fail && step % 17 == 5 {
            tracing::warn!(target: "rollway", step, "runner 3 died and is replaced: out of memory");
        }
        if step.is_multiple_of((self.args.steps / 12).max(1)) {
            self.evaluate(step);
        }
    }

    fn evaluate(&mut self, step: u64) {
        for set in 0..self.args.sets {
            let score = self.skill(step) - 0.07 * set as f64 + 0.03 * (self.random() - 0.5);
            let names = ["held_out", "harder", "other_numbers", "words", "long"];
            self.view.on_event(&JobEvent::Evaluated {
                step,
                version: step,
                set: names[set % names.len()].into(),
                score: Some(score),
                result: Arc::new(result(100, 100, 0)),
                metrics: [("eval/held_out/reward", score)].into_iter().collect(),
            });
            self.sample.done += 100;
        }
    }
}

fn result(tasks: u64, runs: u64, failed: u64) -> BatchResult {
    let mut kinds = ByFailureKind::default();
    kinds[FailureKind::Workflow] = failed;
    let bad = u64::from(failed > 3);
    BatchResult {
        batch: BatchId::Number(1),
        key: BatchKey(1),
        kind: BatchType::Train,
        state: BatchState::Finalized,
        reason: None,
        tasks: TaskTally { ok: tasks - bad, failed: bad, ..TaskTally::default() },
        runs: RunTally {
            submitted: runs,
            succeeded: runs - failed,
            failed: kinds,
            cancelled: ByCancelReason::default(),
            ..RunTally::default()
        },
        delivered: runs - failed,
        dropped: ByDropReason::default(),
        uncertain: 0,
        statuses: Vec::new(),
        sink_metrics: rollway_core::metrics::Metrics::new(),
    }
}
