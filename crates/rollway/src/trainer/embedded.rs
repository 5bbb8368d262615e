//! The embedded trainer of a job: options and metrics.

use rollway_config::{Config, Mode, SyncStyle};
use rollway_core::metrics::Metrics;
use rollway_data::buffer::ExperienceReader;
use rollway_engine::job_event::{JobEvent, JobObservers};
use rollway_engine::job_wait::{JobWaits, WaitLimit, WaitReason};
use rollway_sync::weight_folder::CheckpointRetention;
use rollway_sync::{Synchronizer, TrainerProgress};
use rollway_tiny::trainer::{
    FolderPublisher, SyncPublisher, TinyTrainer, TinyTrainerError as TinyError, TinyTrainerOptions,
    TrainStepMetrics,
};
use rollway_tiny_model::arithmetic;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{TrainerError, TrainerSummary};

/// Key of the maximum time that the trainer waits for experiences.
const READ_TIMEOUT_KEY: &str = "buffer.trainer_input.experience_buffer.max_read_timeout";

/// A running embedded trainer.
pub(super) struct EmbeddedTrainer {
    trainer: TinyTrainer,
    progress: watch::Receiver<TrainerProgress>,
    /// Waits for experiences. `None`: an explorer of this process has waits of its own.
    waits: Option<JobWaits>,
    experiences: WaitReason,
    limit: WaitLimit,
}

/// Starts the embedded trainer, which resumes from its last checkpoint.
pub(super) async fn start(
    config: &Config,
    reader: Box<dyn ExperienceReader>,
    synchronizer: &Synchronizer,
    watchers: JobObservers,
) -> Result<EmbeddedTrainer, TrainerError> {
    let (weights, _) = arithmetic();
    let options = options(config);
    let waits = (config.mode == Mode::Train).then(|| JobWaits::new(watchers.clone()));
    let experiences = WaitReason::Experiences { wanted: options.batch_size as u64 };
    let limit = WaitLimit { key: READ_TIMEOUT_KEY, timeout: options.read_timeout };
    let watch = move |report: &TrainStepMetrics| {
        watchers.emit(&JobEvent::Trained { step: report.step, metrics: metrics(report) });
    };
    let folder = FolderPublisher::new(&options.folder, options.max_temporary);
    let outlet = SyncPublisher::enter(synchronizer, &options.name, folder).await;
    let outlet = Box::new(outlet.map_err(TinyError::from)?);
    let progress = outlet.progress();
    let trainer = TinyTrainer::start_with(options, weights, reader, outlet, watch)?;
    Ok(EmbeddedTrainer { trainer, progress, waits, experiences, limit })
}

/// Waits for the end of the trainer, and stops it on request.
pub(super) async fn run(
    trainer: EmbeddedTrainer,
    stop: CancellationToken,
) -> Result<TrainerSummary, TrainerError> {
    let EmbeddedTrainer { trainer, progress, waits, experiences, limit } = trainer;
    let stopper = trainer.stopper();
    let watching = async {
        if let Some(waits) = &waits {
            log_idle(waits, progress, (experiences, limit)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut joined = tokio::task::spawn_blocking(move || trainer.join());
    let ended = tokio::select! {
        ended = &mut joined => ended,
        () = watching => unreachable!("a future that never completes"),
        () = stop.cancelled() => {
            stopper.stop();
            joined.await
        }
    };
    let summary = ended.map_err(|error| TrainerError::Broken(error.to_string()))??;
    Ok(TrainerSummary { steps: Some(summary.steps), experiences: summary.consumed })
}

/// Turns idle times of a trainer into waits, until the trainer ends.
async fn log_idle(
    waits: &JobWaits,
    mut progress: watch::Receiver<TrainerProgress>,
    (reason, limit): (WaitReason, WaitLimit),
) {
    let is_idle = |state: &TrainerProgress| matches!(state, TrainerProgress::Idle { .. });
    while progress.wait_for(is_idle).await.is_ok() {
        let ended = async { progress.wait_for(|state| !is_idle(state)).await.is_ok() };
        waits.log_during(reason.clone(), Some(limit.clone()), ended).await;
    }
}

fn options(config: &Config) -> TinyTrainerOptions {
    let trainer = &config.trainer;
    let mut options = TinyTrainerOptions::new(config.job_dir());
    options.name.clone_from(&trainer.name);
    if let Some(rate) = trainer.learning_rate {
        options.recipe.rate.learning_rate = rate as f32;
    }
    options.batch_size = config.buffer.train_batch_size as usize;
    options.total_steps = trainer.total_steps.map(u64::from);
    options.publish_interval = config.synchronizer.sync_interval.into();
    options.on_demand = config.synchronizer.sync_style == SyncStyle::ExplorerDriven;
    options.full_interval = (trainer.save_interval > 0).then(|| trainer.save_interval.into());
    options.max_temporary = CheckpointRetention::of(config).max_temporary();
    let buffer = &config.buffer.trainer_input.experience_buffer;
    options.read_timeout = buffer.max_read_timeout.into();
    options
}

fn metrics(report: &TrainStepMetrics) -> Metrics {
    let model = &report.model;
    let mut metrics = Metrics::new();
    let numbers = [
        ("loss", f64::from(model.loss)),
        ("entropy", f64::from(model.entropy)),
        ("clipped", f64::from(model.clipped)),
        ("drift", f64::from(model.drift)),
        ("gradient", f64::from(model.gradient)),
        ("tokens", model.tokens as f64),
        ("experiences", report.experiences as f64),
        ("learned", report.learned as f64),
        ("tasks", report.tasks as f64),
    ];
    for (name, number) in numbers {
        metrics.set(format!("trainer/{name}"), number);
    }
    if let Some(reward) = report.reward {
        metrics.set("trainer/reward", reward);
    }
    if let Some(oldest) = report.oldest_version {
        // A step uses the weights of the step before.
        let age = report.step.saturating_sub(1).saturating_sub(oldest);
        metrics.set("trainer/staleness", age as f64);
    }
    for (reason, count) in &report.skipped {
        metrics.set(format!("trainer/skipped/{reason}"), *count as f64);
    }
    metrics
}
