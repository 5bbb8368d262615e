//! The embedded trainer of a job: options and metrics.

use rollway_config::{Config, SyncStyle};
use rollway_core::metrics::Metrics;
use rollway_data::buffer::ExperienceReader;
use rollway_engine::job_event::{JobEvent, JobObservers};
use rollway_sync::Synchronizer;
use rollway_sync::weight_folder::CheckpointRetention;
use rollway_tiny::trainer::{
    FolderPublisher, SyncPublisher, TinyTrainer, TinyTrainerError as TinyError, TinyTrainerOptions,
    TrainStepMetrics,
};
use rollway_tiny_model::arithmetic;
use tokio_util::sync::CancellationToken;

use super::{TrainerError, TrainerSummary};

/// Starts the embedded trainer, which resumes from its last checkpoint.
pub(super) async fn start(
    config: &Config,
    reader: Box<dyn ExperienceReader>,
    synchronizer: &Synchronizer,
    watchers: JobObservers,
) -> Result<TinyTrainer, TrainerError> {
    let (weights, _) = arithmetic();
    let options = options(config);
    let watch = move |report: &TrainStepMetrics| {
        watchers.emit(&JobEvent::Trained { step: report.step, metrics: metrics(report) });
    };
    let folder = FolderPublisher::new(&options.folder, options.max_temporary);
    let outlet = SyncPublisher::enter(synchronizer, &options.name, folder).await;
    let outlet = Box::new(outlet.map_err(TinyError::from)?);
    Ok(TinyTrainer::start_with(options, weights, reader, outlet, watch)?)
}

/// Waits for the end of the trainer, and stops it on request.
pub(super) async fn run(
    trainer: TinyTrainer,
    stop: CancellationToken,
) -> Result<TrainerSummary, TrainerError> {
    let stopper = trainer.stopper();
    let mut joined = tokio::task::spawn_blocking(move || trainer.join());
    let ended = tokio::select! {
        ended = &mut joined => ended,
        () = stop.cancelled() => {
            stopper.stop();
            joined.await
        }
    };
    let summary = ended.map_err(|error| TrainerError::Broken(error.to_string()))??;
    Ok(TrainerSummary { steps: Some(summary.steps) })
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
