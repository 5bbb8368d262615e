//! The trainer's thread: reads, learns, keeps, publishes.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rollway_data::Sample;
use rollway_data::buffer::{Ask, BufferError, End, Reader, Taken};
use rollway_data::reader::read_until;
use rollway_tiny::{Trainer, Weights};
use rollway_wire::experience::Experience;

use super::checkpoints::{latest, publish, tidy};
use super::state::{Place, failed};
use super::step::{Report, step};
use super::{Options, TrainerError};

/// A trainer that is running.
#[derive(Debug)]
pub struct TinyTrainer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Summary, TrainerError>>>,
}

/// What a trainer did until its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
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
    /// Starts a trainer. It goes on from the state in its folder, or begins with `start`. What it
    /// does is told to `watch`, step by step, after it is published.
    pub fn start(
        options: Options,
        start: Weights,
        reader: Box<dyn Reader>,
        watch: impl FnMut(&Report) + Send + 'static,
    ) -> Result<Self, TrainerError> {
        if let Some(problem) = options.problem() {
            return Err(TrainerError::Options(problem));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("rollway-trainer".to_owned())
            .spawn(move || Run::begin(options, start, reader)?.run(watch, &stopped))
            .map_err(|error| TrainerError::Thread(error.to_string()))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Tells it to end after the step that it is at.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for its end. Blocks.
    pub fn join(mut self) -> Result<Summary, TrainerError> {
        let Some(thread) = self.thread.take() else { return Ok(Summary::default()) };
        let panicked = |_| Err(TrainerError::Thread("it panicked".to_owned()));
        thread.join().unwrap_or_else(panicked)
    }
}

impl Drop for TinyTrainer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread works with.
struct Run {
    options: Options,
    place: Place,
    reader: Box<dyn Reader>,
    trainer: Trainer,
    /// The last step.
    step: u64,
    /// The last step whose state was kept.
    saved: u64,
    /// Where the reader stood after the experiences of the last step.
    position: String,
    summary: Summary,
}

impl Run {
    /// Takes the kept state up, and publishes what a trainer that died did not get to publish.
    fn begin(
        options: Options,
        start: Weights,
        mut reader: Box<dyn Reader>,
    ) -> Result<Self, TrainerError> {
        fs::create_dir_all(&options.folder).map_err(failed(&options.folder))?;
        let place = Place::new(&options.folder, &options.name);
        let (step, trainer) = match place.load()? {
            Some((meta, trainer)) => {
                let step = meta.latest_iteration;
                let sought = reader.seek(&meta.position);
                sought.map_err(|source| TrainerError::Position { step, source })?;
                (step, trainer)
            }
            None => {
                let trainer = Trainer::new(start);
                // From here on a restart goes on, and does not begin anew.
                place.save(0, &reader.position(), &trainer)?;
                (0, trainer)
            }
        };
        let summary = Summary { steps: step, ..Summary::default() };
        let position = reader.position();
        let run = Self { options, place, reader, trainer, step, saved: step, position, summary };
        if run.is_published() && latest(&run.options.folder)? != Some(step) {
            run.publish()?;
        }
        Ok(run)
    }

    fn run(
        mut self,
        watch: impl FnMut(&Report),
        stop: &AtomicBool,
    ) -> Result<Summary, TrainerError> {
        let ended = self.work(watch, &|| stop.load(Ordering::Relaxed));
        self.keep()?;
        ended?;
        // Whoever comes next gets what was read and not learned; what was learned is acknowledged.
        if self.reader.position() != self.position {
            self.reader.seek(&self.position)?;
        }
        self.reader.read(&Ask { count: 0, ..self.ask(Duration::ZERO) })?;
        Ok(self.summary)
    }

    fn work(
        &mut self,
        mut watch: impl FnMut(&Report),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), TrainerError> {
        while self.options.total_steps.is_none_or(|total| self.step < total) && !is_stopped() {
            let Some((samples, end)) = self.read(is_stopped)? else { break };
            if !samples.is_empty() {
                watch(&self.learn(&samples)?);
            }
            if end == End::Finished {
                self.summary.is_finished = true;
                break;
            }
        }
        Ok(())
    }

    /// What was read before is acknowledged if, and only if, its step is kept.
    fn ask(&self, timeout: Duration) -> Ask {
        let keep = self.saved < self.step;
        Ask { count: self.options.batch_size, timeout, min_model_version: 0, keep }
    }

    /// Waits for the experiences of a step; none if it was told to stop meanwhile.
    fn read(
        &mut self,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(Vec<Sample>, End)>, TrainerError> {
        let waited = self.options.read_timeout;
        let ask = self.ask(waited);
        let mut taken = Taken { samples: Vec::new(), stale: 0, end: End::TimedOut };
        read_until(self.reader.as_mut(), &ask, &mut taken, is_stopped)?;
        self.summary.stale += taken.stale as u64;
        match taken.end {
            End::TimedOut if is_stopped() => Ok(None),
            End::TimedOut => {
                let (wanted, got) = (ask.count, taken.samples.len());
                Err(TrainerError::NoExperiences { step: self.step + 1, wanted, got, waited })
            }
            end => Ok(Some((taken.samples, end))),
        }
    }

    fn learn(&mut self, samples: &[Sample]) -> Result<Report, TrainerError> {
        let experiences: Result<Vec<Experience>, _> =
            samples.iter().map(|sample| sample.decode().map_err(BufferError::from)).collect();
        let mut report = step(&mut self.trainer, &experiences?, &self.options.recipe);
        self.step += 1;
        self.position = self.reader.position();
        report.step = self.step;
        self.summary.steps = self.step;
        self.summary.experiences += report.experiences;
        if self.step - self.saved >= self.options.save_interval || self.is_published() {
            // What others may see must not be made again otherwise.
            self.keep()?;
        }
        if self.is_published() {
            self.publish()?;
        }
        Ok(report)
    }

    fn keep(&mut self) -> Result<(), TrainerError> {
        if self.saved < self.step {
            self.place.save(self.step, &self.position, &self.trainer)?;
            self.saved = self.step;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.options.full_interval.is_some_and(|every| self.step.is_multiple_of(every))
    }

    fn is_published(&self) -> bool {
        let is_last = self.options.total_steps == Some(self.step);
        is_last || self.is_full() || self.step.is_multiple_of(self.options.publish_interval)
    }

    fn publish(&self) -> Result<(), TrainerError> {
        let (folder, weights) = (&self.options.folder, self.trainer.weights());
        publish(folder, self.step, weights, self.is_full())?;
        tidy(folder, self.options.max_passing)
    }
}
