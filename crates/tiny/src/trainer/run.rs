//! The trainer's thread: reads, learns, keeps, publishes.

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

/// How long a look for experiences takes at most, before the trainer turns to who waits for
/// weights or wants it to stop. A buffer cannot be interrupted.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The same while somebody waits.
const SHORT_SLICE: Duration = Duration::from_millis(10);

/// A trainer that is running.
#[derive(Debug)]
pub struct TinyTrainer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<TinyTrainerSummary, TinyTrainerError>>>,
}

/// Ends a trainer from elsewhere.
#[derive(Clone, Debug)]
pub struct TinyTrainerStop(Arc<AtomicBool>);

impl TinyTrainerStop {
    /// Tells it to end after the step that it is at.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a trainer did until its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TinyTrainerSummary {
    /// The last step, those before a restart among them.
    pub steps: u64,
    /// How many experiences it learned from or skipped since it was started.
    pub experiences: u64,
    /// How many the buffer passed over because they were too old.
    pub stale: u64,
    /// Whether there will be no more experiences.
    pub is_finished: bool,
}

impl TinyTrainer {
    /// Starts a trainer that puts its weights into its folder, and tells nobody.
    pub fn start(
        options: TinyTrainerOptions,
        start: ModelWeights,
        reader: Box<dyn ExperienceReader>,
        watch: impl FnMut(&TrainStepMetrics) + Send + 'static,
    ) -> Result<Self, TinyTrainerError> {
        let outlet = FolderPublisher::new(&options.folder, options.max_passing);
        Self::start_with(options, start, reader, Box::new(outlet), watch)
    }

    /// Starts a trainer. It goes on from the state in its folder, or begins with `start`. What it
    /// does is told to `watch`, step by step, after it is published.
    pub fn start_with(
        options: TinyTrainerOptions,
        start: ModelWeights,
        reader: Box<dyn ExperienceReader>,
        outlet: Box<dyn WeightPublisher>,
        watch: impl FnMut(&TrainStepMetrics) + Send + 'static,
    ) -> Result<Self, TinyTrainerError> {
        if let Some(problem) = options.problem() {
            return Err(TinyTrainerError::Options(problem));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("rollway-trainer".to_owned())
            .spawn(move || run(options, start, reader, outlet, watch, &stopped))
            .map_err(|error| TinyTrainerError::Thread(error.to_string()))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Tells it to end after the step that it is at.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns what tells it so from elsewhere.
    pub fn stopper(&self) -> TinyTrainerStop {
        TinyTrainerStop(Arc::clone(&self.stop))
    }

    /// Waits for its end. Blocks.
    pub fn join(mut self) -> Result<TinyTrainerSummary, TinyTrainerError> {
        let Some(thread) = self.thread.take() else { return Ok(TinyTrainerSummary::default()) };
        let panicked = |_| Err(TinyTrainerError::Thread("it panicked".to_owned()));
        thread.join().unwrap_or_else(panicked)
    }
}

impl Drop for TinyTrainer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Works until the end, and tells those who wait how it was.
fn run(
    options: TinyTrainerOptions,
    start: ModelWeights,
    reader: Box<dyn ExperienceReader>,
    mut outlet: Box<dyn WeightPublisher>,
    watch: impl FnMut(&TrainStepMetrics),
    stop: &AtomicBool,
) -> Result<TinyTrainerSummary, TinyTrainerError> {
    let total_steps = options.total_steps;
    let ended = TrainerRun::begin(options, start, reader, outlet.as_mut())
        .and_then(|run| run.run(watch, stop));
    match &ended {
        Ok(summary) if summary.is_finished || total_steps.is_some_and(|it| summary.steps >= it) => {
            outlet.end(Ok(()));
        }
        // It was stopped: another process may go on.
        Ok(_) => drop(outlet),
        Err(error) => outlet.end(Err(error.to_string())),
    }
    ended
}

/// What the thread works with.
struct TrainerRun<'a> {
    options: TinyTrainerOptions,
    place: TrainerStateFile,
    reader: Box<dyn ExperienceReader>,
    outlet: &'a mut dyn WeightPublisher,
    trainer: ModelTrainer,
    /// The last step.
    step: u64,
    /// The last step whose state was kept.
    saved: u64,
    /// The last step whose weights were published; none if there is none.
    published: Option<u64>,
    /// What was told last.
    told: Option<TrainerProgress>,
    /// Where the reader stood after the experiences of the last step.
    position: String,
    summary: TinyTrainerSummary,
}

impl<'a> TrainerRun<'a> {
    /// Takes the kept state up, and publishes what a trainer that died did not get to publish.
    fn begin(
        options: TinyTrainerOptions,
        start: ModelWeights,
        mut reader: Box<dyn ExperienceReader>,
        outlet: &'a mut dyn WeightPublisher,
    ) -> Result<Self, TinyTrainerError> {
        fs::create_dir_all(&options.folder).map_err(failed(&options.folder))?;
        let place = TrainerStateFile::new(&options.folder, &options.name);
        let (step, trainer) = match place.load()? {
            Some((meta, trainer)) => {
                let step = meta.latest_iteration;
                let sought = reader.seek(&meta.position);
                sought.map_err(|source| TinyTrainerError::Position { step, source })?;
                (step, trainer)
            }
            None => {
                let trainer = ModelTrainer::new(start);
                // From here on a restart goes on, and does not begin anew.
                place.save(0, &reader.position(), &trainer)?;
                (0, trainer)
            }
        };
        let mut run = Self {
            summary: TinyTrainerSummary { steps: step, ..TinyTrainerSummary::default() },
            position: reader.position(),
            published: outlet.newest()?,
            told: None,
            saved: step,
            options,
            place,
            reader,
            outlet,
            trainer,
            step,
        };
        // Weights in memory do not survive everything that the state survives.
        let is_lost = run.published.is_none() && step > 0;
        if (run.is_due() || is_lost) && run.published != Some(step) {
            run.put(true)?;
        }
        Ok(run)
    }

    fn run(
        mut self,
        watch: impl FnMut(&TrainStepMetrics),
        stop: &AtomicBool,
    ) -> Result<TinyTrainerSummary, TinyTrainerError> {
        let ended = self.work(watch, &|| stop.load(Ordering::Relaxed));
        self.keep()?;
        ended?;
        if self.summary.is_finished && self.published != Some(self.step) {
            self.put(true)?;
        }
        // Whoever comes next gets what was read and not learned; what was learned is acknowledged.
        if self.reader.position() != self.position {
            self.reader.seek(&self.position)?;
        }
        self.reader.read(&ReadRequest { count: 0, ..self.ask(Duration::ZERO) })?;
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
                self.tell(TrainerProgress::Training);
                watch(&self.learn(&samples)?);
            }
            if end == ReadEnd::Finished {
                self.summary.is_finished = true;
                break;
            }
        }
        Ok(())
    }

    /// Tells those who wait what it is at, if they do not know.
    fn tell(&mut self, state: TrainerProgress) {
        if self.told.as_ref() != Some(&state) {
            self.outlet.tell(state.clone());
            self.told = Some(state);
        }
    }

    /// What was read before is acknowledged if, and only if, its step is kept.
    fn ask(&self, timeout: Duration) -> ReadRequest {
        let keep = self.saved < self.step;
        ReadRequest { count: self.options.batch_size, timeout, min_model_version: 0, keep }
    }

    /// Waits for the experiences of a step; none if it was told to stop meanwhile.
    fn read(
        &mut self,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(Vec<Sample>, ReadEnd)>, TinyTrainerError> {
        let (wanted, waited) = (self.options.batch_size, self.options.read_timeout);
        let until = Instant::now().checked_add(waited);
        let mut samples = Vec::new();
        let mut ask = self.ask(waited);
        loop {
            // Known before the look: who waited by then has delivered what may be found.
            let asked = self.outlet.wait_status();
            let slice = if asked.waiting > 0 { SHORT_SLICE } else { POLL_INTERVAL };
            let left = until.map_or(slice, |it| it.saturating_duration_since(Instant::now()));
            ask.count = wanted - samples.len();
            ask.timeout = left.min(slice);
            let more = self.reader.read(&ask)?;
            samples.extend(more.samples);
            self.summary.stale += more.stale as u64;
            if more.end != ReadEnd::TimedOut {
                return Ok(Some((samples, more.end)));
            }
            if is_stopped() {
                return Ok(None);
            }
            if left.is_zero() {
                let got = samples.len();
                return Err(TinyTrainerError::NoExperiences {
                    step: self.step + 1,
                    wanted,
                    got,
                    waited,
                });
            }
            // What was acknowledged is, and what was just read is not.
            ask.keep = true;
            self.idle(asked)?;
        }
    }

    /// Gives those who wait what there is, since there will be no more before experiences come.
    fn idle(&mut self, asked: WaitStatus) -> Result<(), TinyTrainerError> {
        if asked.wanted.is_some() && self.published.is_none_or(|it| it < self.step) && self.step > 0
        {
            self.keep()?;
            self.put(true)?;
        }
        self.tell(TrainerProgress::Idle { seen: asked.ask });
        Ok(())
    }

    fn learn(&mut self, samples: &[Sample]) -> Result<TrainStepMetrics, TinyTrainerError> {
        let experiences: Result<Vec<Experience>, _> =
            samples.iter().map(|sample| sample.decode().map_err(BufferError::from)).collect();
        let mut report = step(&mut self.trainer, &experiences?, &self.options.recipe);
        self.step += 1;
        self.position = self.reader.position();
        report.step = self.step;
        self.summary.steps = self.step;
        self.summary.experiences += report.experiences;
        let is_published = self.is_due() || self.is_demanded();
        if self.step - self.saved >= self.options.save_interval || is_published || self.is_full() {
            // What others may see must not be made again otherwise.
            self.keep()?;
        }
        if is_published || self.is_full() {
            self.put(is_published)?;
        }
        Ok(report)
    }

    fn keep(&mut self) -> Result<(), TinyTrainerError> {
        if self.saved < self.step {
            self.place.save(self.step, &self.position, &self.trainer)?;
            self.saved = self.step;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.options.full_interval.is_some_and(|every| self.step.is_multiple_of(every))
    }

    /// Tells whether the weights of this step are published whoever wants them.
    fn is_due(&self) -> bool {
        let is_last = self.options.total_steps == Some(self.step);
        let every = self.options.publish_interval;
        is_last || (!self.options.on_demand && self.step.is_multiple_of(every))
    }

    /// Tells whether somebody demands weights, and these would do.
    fn is_demanded(&mut self) -> bool {
        self.options.on_demand && self.outlet.wait_status().wanted.is_some_and(|it| it <= self.step)
    }

    fn put(&mut self, is_published: bool) -> Result<(), TinyTrainerError> {
        let occasion = PublishFlags { is_published, is_full: self.is_full() };
        self.outlet.put(self.step, self.trainer.weights(), occasion)?;
        if is_published {
            self.published = Some(self.step);
        }
        Ok(())
    }
}
