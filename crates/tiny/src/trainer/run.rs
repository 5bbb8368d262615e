//! The trainer's thread: reads batches, trains, saves its state, publishes weights.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rollway_data::Sample;
use rollway_data::buffer::{BufferError, ExperienceReader, ReadEnd, ReadRequest};
use rollway_experience::Experience;
use rollway_tiny_model::{ModelTrainer, ModelWeights};

use super::publisher::{FolderPublisher, PublishFlags, WeightPublisher};
use super::state::TrainerStateFile;
use super::step::{TrainStepMetrics, step};
use super::{TinyTrainerError, TinyTrainerOptions};
use rollway_sync::weight_folder::failed;
use rollway_sync::{TrainerProgress, WaitStatus};

/// Maximum duration of one read, before the trainer checks for demand and stop. A read cannot be
/// interrupted.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The same while an explorer waits.
const DEMAND_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running trainer. Dropping it stops it.
#[derive(Debug)]
pub struct TinyTrainer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<TinyTrainerSummary, TinyTrainerError>>>,
}

/// Stops a trainer from another thread.
#[derive(Clone, Debug)]
pub struct TinyTrainerStop(Arc<AtomicBool>);

impl TinyTrainerStop {
    /// Stops after the current step.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Totals of a trainer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TinyTrainerSummary {
    /// Last step, including those before a restart.
    pub steps: u64,
    /// Trained or skipped since this start.
    pub experiences: u64,
    /// Skipped by the buffer as too old.
    pub stale: u64,
    /// Trained, skipped or stale since the first start. `None`: unknown, an earlier release
    /// began.
    pub consumed: Option<u64>,
    /// The buffer is finished.
    pub is_finished: bool,
}

impl TinyTrainerSummary {
    fn consume(&mut self, experiences: u64) {
        self.consumed = self.consumed.map(|consumed| consumed + experiences);
    }
}

impl TinyTrainer {
    /// Starts a trainer that publishes into its folder only.
    pub fn start(
        options: TinyTrainerOptions,
        start: ModelWeights,
        reader: Box<dyn ExperienceReader>,
        watch: impl FnMut(&TrainStepMetrics) + Send + 'static,
    ) -> Result<Self, TinyTrainerError> {
        let publisher = FolderPublisher::new(&options.folder, options.max_temporary);
        Self::start_with(options, start, reader, Box::new(publisher), watch)
    }

    /// Starts a trainer. It resumes from the state in its folder, or begins with `start`. `watch`
    /// gets the metrics of each step after its weights are published.
    pub fn start_with(
        options: TinyTrainerOptions,
        start: ModelWeights,
        reader: Box<dyn ExperienceReader>,
        publisher: Box<dyn WeightPublisher>,
        watch: impl FnMut(&TrainStepMetrics) + Send + 'static,
    ) -> Result<Self, TinyTrainerError> {
        if let Some(problem) = options.problem() {
            return Err(TinyTrainerError::Options(problem));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("rollway-trainer".to_owned())
            .spawn(move || run(options, start, reader, publisher, watch, &stopped))
            .map_err(|error| TinyTrainerError::Thread(error.to_string()))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Stops after the current step.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn stopper(&self) -> TinyTrainerStop {
        TinyTrainerStop(Arc::clone(&self.stop))
    }

    /// Waits for the end. Blocks.
    pub fn join(mut self) -> Result<TinyTrainerSummary, TinyTrainerError> {
        let Some(thread) = self.thread.take() else { return Ok(TinyTrainerSummary::default()) };
        let panicked = |_| Err(TinyTrainerError::Thread("panic".to_owned()));
        thread.join().unwrap_or_else(panicked)
    }
}

impl Drop for TinyTrainer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Trains until the end and reports it to the publisher.
fn run(
    options: TinyTrainerOptions,
    start: ModelWeights,
    reader: Box<dyn ExperienceReader>,
    mut publisher: Box<dyn WeightPublisher>,
    watch: impl FnMut(&TrainStepMetrics),
    stop: &AtomicBool,
) -> Result<TinyTrainerSummary, TinyTrainerError> {
    let total_steps = options.total_steps;
    let ended = TrainerRun::begin(options, start, reader, publisher.as_mut())
        .and_then(|run| run.run(watch, stop));
    match &ended {
        Ok(summary) if summary.is_finished || total_steps.is_some_and(|it| summary.steps >= it) => {
            publisher.end(Ok(()));
        }
        // Stopped: another process may resume.
        Ok(_) => drop(publisher),
        Err(error) => publisher.end(Err(error.to_string())),
    }
    ended
}

struct TrainerRun<'a> {
    options: TinyTrainerOptions,
    state: TrainerStateFile,
    reader: Box<dyn ExperienceReader>,
    publisher: &'a mut dyn WeightPublisher,
    trainer: ModelTrainer,
    step: u64,
    /// Last step with a saved state.
    saved: u64,
    /// Last step with published weights.
    published: Option<u64>,
    /// Last reported progress.
    reported: Option<TrainerProgress>,
    /// Position of the reader after the last step.
    position: String,
    summary: TinyTrainerSummary,
}

impl<'a> TrainerRun<'a> {
    /// Loads the saved state, and publishes weights that a killed trainer did not publish.
    fn begin(
        options: TinyTrainerOptions,
        start: ModelWeights,
        mut reader: Box<dyn ExperienceReader>,
        publisher: &'a mut dyn WeightPublisher,
    ) -> Result<Self, TinyTrainerError> {
        fs::create_dir_all(&options.folder).map_err(failed(&options.folder))?;
        let state = TrainerStateFile::new(&options.folder, &options.name);
        let (step, consumed, trainer) = match state.load()? {
            Some((meta, trainer)) => {
                let step = meta.latest_iteration;
                let sought = reader.seek(&meta.position);
                sought.map_err(|source| TinyTrainerError::Position { step, source })?;
                (step, meta.consumed, trainer)
            }
            None => {
                let trainer = ModelTrainer::new(start);
                // From now on a restart resumes.
                state.save((0, &reader.position()), Some(0), &trainer)?;
                (0, Some(0), trainer)
            }
        };
        let mut run = Self {
            summary: TinyTrainerSummary { steps: step, consumed, ..TinyTrainerSummary::default() },
            position: reader.position(),
            published: publisher.newest()?,
            reported: None,
            saved: step,
            options,
            state,
            reader,
            publisher,
            trainer,
            step,
        };
        // Weights in memory may be lost while the state survives.
        let is_lost = run.published.is_none() && step > 0;
        if (run.is_due() || is_lost) && run.published != Some(step) {
            run.publish(true)?;
        }
        Ok(run)
    }

    fn run(
        mut self,
        watch: impl FnMut(&TrainStepMetrics),
        stop: &AtomicBool,
    ) -> Result<TinyTrainerSummary, TinyTrainerError> {
        let ended = self.work(watch, &|| stop.load(Ordering::Relaxed));
        self.save()?;
        ended?;
        if self.summary.is_finished && self.published != Some(self.step) {
            self.publish(true)?;
        }
        // Samples that were read but not trained are served again; trained ones are acknowledged.
        if self.reader.position() != self.position {
            self.reader.seek(&self.position)?;
        }
        self.reader.read(&ReadRequest { count: 0, ..self.read_request(Duration::ZERO) })?;
        Ok(self.summary)
    }

    fn work(
        &mut self,
        mut watch: impl FnMut(&TrainStepMetrics),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), TinyTrainerError> {
        while self.options.total_steps.is_none_or(|total| self.step < total) && !is_stopped() {
            let Some((samples, end)) = self.read(is_stopped)? else { break };
            if !samples.is_empty() {
                self.report(TrainerProgress::Training);
                watch(&self.train(&samples)?);
            }
            if end == ReadEnd::Finished {
                self.summary.is_finished = true;
                break;
            }
        }
        Ok(())
    }

    /// Reports changed progress.
    fn report(&mut self, progress: TrainerProgress) {
        if self.reported.as_ref() != Some(&progress) {
            self.publisher.report(progress.clone());
            self.reported = Some(progress);
        }
    }

    /// Acknowledges the samples read before if, and only if, their step is saved.
    fn read_request(&self, timeout: Duration) -> ReadRequest {
        let keep = self.saved < self.step;
        ReadRequest { count: self.options.batch_size, timeout, min_model_version: 0, keep }
    }

    /// Waits for the experiences of a step. `None`: stopped.
    fn read(
        &mut self,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(Vec<Sample>, ReadEnd)>, TinyTrainerError> {
        let (wanted, waited) = (self.options.batch_size, self.options.read_timeout);
        let until = Instant::now().checked_add(waited);
        let mut samples = Vec::new();
        let mut request = self.read_request(waited);
        loop {
            // Read before the samples: explorers that waited by then have written theirs.
            let demand = self.publisher.wait_status();
            let slice = if demand.waiting > 0 { DEMAND_POLL_INTERVAL } else { POLL_INTERVAL };
            let left = until.map_or(slice, |it| it.saturating_duration_since(Instant::now()));
            request.count = wanted - samples.len();
            request.timeout = left.min(slice);
            let more = self.reader.read(&request)?;
            samples.extend(more.samples);
            self.summary.stale += more.stale as u64;
            self.summary.consume(more.stale as u64);
            if more.end != ReadEnd::TimedOut {
                return Ok(Some((samples, more.end)));
            }
            if is_stopped() {
                return Ok(None);
            }
            if left.is_zero() {
                let (step, got) = (self.step + 1, samples.len());
                return Err(TinyTrainerError::NoExperiences { step, wanted, got, waited });
            }
            // The first read acknowledged; samples of this step are not safe yet.
            request.keep = true;
            self.idle(demand)?;
        }
    }

    /// Publishes the current weights on demand, since no newer ones come before experiences do.
    fn idle(&mut self, waits: WaitStatus) -> Result<(), TinyTrainerError> {
        if waits.demanded.is_some()
            && self.published.is_none_or(|it| it < self.step)
            && self.step > 0
        {
            self.save()?;
            self.publish(true)?;
        }
        self.report(TrainerProgress::Idle { seen: waits.wait });
        Ok(())
    }

    fn train(&mut self, samples: &[Sample]) -> Result<TrainStepMetrics, TinyTrainerError> {
        let experiences: Result<Vec<Experience>, _> =
            samples.iter().map(|sample| sample.decode().map_err(BufferError::from)).collect();
        let mut metrics = step(&mut self.trainer, &experiences?, &self.options.recipe);
        self.step += 1;
        self.position = self.reader.position();
        metrics.step = self.step;
        self.summary.steps = self.step;
        self.summary.experiences += metrics.experiences;
        self.summary.consume(metrics.experiences);
        let is_published = self.is_due() || self.is_demanded();
        if self.step - self.saved >= self.options.save_interval || is_published || self.is_full() {
            // Published weights must not be trained again differently.
            self.save()?;
        }
        if is_published || self.is_full() {
            self.publish(is_published)?;
        }
        Ok(metrics)
    }

    fn save(&mut self) -> Result<(), TinyTrainerError> {
        if self.saved < self.step {
            let at = (self.step, &*self.position);
            self.state.save(at, self.summary.consumed, &self.trainer)?;
            self.saved = self.step;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.options.full_interval.is_some_and(|every| self.step.is_multiple_of(every))
    }

    /// Returns whether the weights of this step are published without demand.
    fn is_due(&self) -> bool {
        let is_last = self.options.total_steps == Some(self.step);
        let every = self.options.publish_interval;
        is_last || (!self.options.on_demand && self.step.is_multiple_of(every))
    }

    /// Returns whether explorers demand weights that this step satisfies.
    fn is_demanded(&mut self) -> bool {
        self.options.on_demand
            && self.publisher.wait_status().demanded.is_some_and(|it| it <= self.step)
    }

    fn publish(&mut self, is_published: bool) -> Result<(), TinyTrainerError> {
        let flags = PublishFlags { is_published, is_full: self.is_full() };
        self.publisher.store(self.step, self.trainer.weights(), flags)?;
        if is_published {
            self.published = Some(self.step);
        }
        Ok(())
    }
}
