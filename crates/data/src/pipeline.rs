//! Pipeline: from the payloads of a batch to experiences for training.
//!
//! A [`Pipeline`] decodes payloads, optionally saves them, runs its [`Operator`]s in order and
//! writes the result, all under the key of the call. Every step is repeatable: input is decoded
//! anew for every call, and writers deduplicate. An [`OperatorRegistry`] creates operators from a
//! configuration; `docs/pipeline.md` describes the [`operators`].

mod arguments;
mod error;
mod operator;
pub mod operators;
mod registry;
mod report;

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use bytes::Bytes;
use rollway_core::metrics::PassRates;
use rollway_experience::{Experience, deserialize_many};

pub use self::arguments::{ArgumentError, OperatorArguments};
pub use self::error::PipelineError;
pub use self::operator::{Operator, OperatorError, OperatorOutput};
pub use self::registry::{OperatorConstructor, OperatorRegistry, OperatorRegistryError};
use self::report::{DECODE, DUPLICATE_ID, INVALID, MetricsBuilder, SAVE_INPUT, TOTAL, WRITE};
pub use self::report::{DroppedExperiences, PipelineReport};
use crate::buffer::{ExperienceWriter, WriteResult};
use crate::{Sample, WriteBatch};

/// Runs the operators of a job. Holds no more than the batch of one call.
pub struct Pipeline {
    stages: Vec<PipelineStep>,
    input: Option<Box<dyn ExperienceWriter>>,
    output: Option<Box<dyn ExperienceWriter>>,
    state: PipelineState,
}

/// An operator and its label in metrics and errors.
struct PipelineStep {
    label: String,
    operator: Box<dyn Operator>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PipelineState {
    New,
    Prepared,
    Closed,
}

/// Experiences between operators, with counts and metrics so far.
struct Flow {
    begin: Instant,
    experiences: Vec<Experience>,
    /// Ids of `experiences`.
    ids: HashSet<String>,
    numbers: MetricsBuilder,
    report: PipelineReport,
}

impl Pipeline {
    /// Creates a pipeline. `input`, if given, stores the experiences as received.
    pub fn new(
        operators: Vec<Box<dyn Operator>>,
        input: Option<Box<dyn ExperienceWriter>>,
        output: Box<dyn ExperienceWriter>,
    ) -> Self {
        let labels = report::labels(operators.iter().map(|operator| operator.name()));
        let stages = labels.into_iter().zip(operators);
        let stages = stages.map(|(label, operator)| PipelineStep { label, operator }).collect();
        Self { stages, input, output: Some(output), state: PipelineState::New }
    }

    /// Prepares all operators. If one fails, those before it are closed again and a retry is
    /// possible. Idempotent.
    pub fn prepare(&mut self) -> Result<(), PipelineError> {
        match self.state {
            PipelineState::Closed => return Err(PipelineError::Closed),
            PipelineState::Prepared => return Ok(()),
            PipelineState::New => {}
        }
        for at in 0..self.stages.len() {
            if let Err(error) = self.stages[at].prepare() {
                self.stages[..at].iter_mut().rev().for_each(PipelineStep::close);
                return Err(error);
            }
        }
        self.state = PipelineState::Prepared;
        Ok(())
    }

    /// Processes the payloads of a batch. On success the result is in the output.
    ///
    /// The key identifies the batch: repeating the call after an error or a crash stores nothing
    /// twice. Empty payloads are ignored.
    pub fn process(
        &mut self,
        key: &str,
        payloads: &[Bytes],
    ) -> Result<PipelineReport, PipelineError> {
        match self.state {
            PipelineState::New => return Err(PipelineError::NotPrepared),
            PipelineState::Closed => return Err(PipelineError::Closed),
            PipelineState::Prepared => {}
        }
        let mut flow = Flow::decode(payloads);
        if let Some(input) = &mut self.input {
            let begin = Instant::now();
            let write_batch = write_batch(format!("{key}/input"), &flow.experiences)?;
            write(input.as_mut(), &write_batch).map_err(PipelineError::Input)?;
            flow.numbers.time(SAVE_INPUT, begin.elapsed());
        }
        for stage in &mut self.stages {
            flow = flow.apply(stage)?;
        }
        let output = self.output.as_deref_mut().ok_or(PipelineError::Closed)?;
        flow.into_output(key, output)
    }

    /// Closes the operators and then the writers, which ends the data. Repeatable if a writer
    /// fails; the other one is closed nevertheless.
    pub fn close(&mut self) -> Result<(), PipelineError> {
        if self.state == PipelineState::Prepared {
            self.stages.iter_mut().rev().for_each(PipelineStep::close);
        }
        self.state = PipelineState::Closed;
        let input = close(&mut self.input).map_err(PipelineError::Input);
        let output = close(&mut self.output).map_err(PipelineError::Output);
        output.and(input)
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operators: Vec<&str> = self.stages.iter().map(|stage| stage.label.as_str()).collect();
        f.debug_struct("Pipeline")
            .field("operators", &operators)
            .field("saves_input", &self.input.is_some())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl PipelineStep {
    fn prepare(&mut self) -> Result<(), PipelineError> {
        let Self { label, operator } = self;
        guarded(label, || operator.prepare())?
            .map_err(|source| PipelineError::Prepare { operator: label.clone(), source })
    }

    fn process(&mut self, experiences: Vec<Experience>) -> Result<OperatorOutput, PipelineError> {
        let Self { label, operator } = self;
        guarded(label, || operator.process(experiences))?
            .map_err(|source| PipelineError::Operator { operator: label.clone(), source })
    }

    /// Errors of closing are logged.
    fn close(&mut self) {
        let Self { label, operator } = self;
        if let Err(error) = guarded(label, || operator.close()) {
            tracing::error!(%error, "an operator did not close");
        }
    }
}

impl Flow {
    /// Decodes payloads. One that cannot be decoded is dropped, logged and counted as one
    /// experience. Of several experiences with one id the first counts; a buffer would reject the
    /// others.
    fn decode(payloads: &[Bytes]) -> Self {
        let begin = Instant::now();
        let mut report = PipelineReport::default();
        let mut experiences = Vec::new();
        let mut ids = HashSet::new();
        let (mut invalid, mut duplicate) = (0, 0);
        for (position, payload) in payloads.iter().enumerate() {
            if payload.is_empty() {
                continue;
            }
            match deserialize_many(payload.clone()) {
                Ok(decoded) => {
                    let (count, before) = (decoded.len(), experiences.len());
                    report.submitted += count;
                    experiences.extend(decoded.into_iter().filter(|one| ids.insert(one.eid.uid())));
                    duplicate += count - (experiences.len() - before);
                }
                Err(error) => {
                    let count = payloads.len();
                    tracing::warn!(position, count, %error, "payload dropped: not readable");
                    report.submitted += 1;
                    invalid += 1;
                }
            }
        }
        let mut flow = Self { begin, experiences, ids, numbers: MetricsBuilder::default(), report };
        flow.drop(DECODE, INVALID, invalid);
        flow.drop(DECODE, DUPLICATE_ID, duplicate);
        flow.numbers.versions(flow.experiences.iter().flat_map(|it| &it.model_versions));
        flow.numbers.time(DECODE, begin.elapsed());
        flow
    }

    /// Runs an operator and counts the outcome.
    fn apply(mut self, stage: &mut PipelineStep) -> Result<Self, PipelineError> {
        let begin = Instant::now();
        // Rewards that were invalid before are left to the filters.
        let were_valid = !self.experiences.iter().any(|one| invalid_reward(one).is_some());
        let outcome = stage.process(std::mem::take(&mut self.experiences))?;
        let mut invalid =
            outcome.experiences.iter().filter_map(|one| Some((one, invalid_reward(one)?)));
        if let Some((one, reward)) = invalid.next().filter(|_| were_valid) {
            let (operator, id) = (stage.label.clone(), one.eid.uid());
            return Err(PipelineError::InvalidReward { operator, id, reward });
        }
        self.numbers.time(&stage.label, begin.elapsed());
        let (label, before) = (&stage.label, std::mem::take(&mut self.ids));
        for experience in &outcome.experiences {
            if !self.ids.insert(experience.eid.uid()) {
                let (operator, id) = (label.clone(), experience.eid.uid());
                return Err(PipelineError::DuplicateId { operator, id });
            }
        }
        let kept = self.ids.intersection(&before).count();
        let (found, explained) = (before.len() - kept, outcome.dropped.values().sum());
        if explained > found {
            return Err(PipelineError::Miscounted { operator: label.clone(), explained, found });
        }
        self.report.added += self.ids.len() - kept;
        for (reason, count) in outcome.dropped {
            self.drop(label, &reason, count);
        }
        self.drop(label, OperatorOutput::UNEXPLAINED, found - explained);
        self.numbers.count(&format!("{label}/filtered_count"), found);
        self.learn(label, &outcome.selector);
        self.numbers.operator(label, stage.operator.name(), &outcome.metrics);
        self.experiences = outcome.experiences;
        Ok(self)
    }

    /// Writes the experiences and returns the report.
    fn into_output(
        mut self,
        key: &str,
        output: &mut dyn ExperienceWriter,
    ) -> Result<PipelineReport, PipelineError> {
        let begin = Instant::now();
        let write_batch = write_batch(format!("{key}/output"), &self.experiences)?;
        let written = write(output, &write_batch).map_err(PipelineError::Output)?;
        self.numbers.time(WRITE, begin.elapsed());
        self.numbers.time(TOTAL, self.begin.elapsed());
        self.numbers.count("experience_count", write_batch.samples.len());
        let unrewarded = self.experiences.iter().filter(|one| one.is_unrewarded()).count();
        if unrewarded > 0 {
            self.numbers.count("unrewarded_count", unrewarded);
        }
        self.numbers.count("filtered_count", self.report.dropped_count());
        let WriteResult { stored, known, dropped: displaced } = written;
        Ok(PipelineReport {
            metrics: self.numbers.finish(),
            stored,
            known,
            displaced,
            ..self.report
        })
    }

    fn drop(&mut self, label: &str, reason: &str, count: usize) {
        if count > 0 {
            self.numbers.count(&format!("{label}/filtered/{reason}"), count);
            let (operator, reason) = (label.to_owned(), reason.to_owned());
            self.report.dropped.push(DroppedExperiences { operator, reason, count });
        }
    }

    /// Merges pass rates; a task is learned once.
    fn learn(&mut self, label: &str, selector: &PassRates) {
        let known = selector.iter().filter(|rate| !self.report.selector.add(**rate)).count();
        if known > 0 {
            self.numbers.count(&format!("{label}/ignored_pass_rates"), known);
        }
    }
}

/// Returns a reward, or a reward of a token, that is not finite.
fn invalid_reward(experience: &Experience) -> Option<f64> {
    let reward = experience.reward.filter(|reward| !reward.is_finite());
    reward.or_else(|| experience.invalid_token_reward().map(|(_, reward)| f64::from(reward)))
}

/// Calls an operator and converts its panics to errors.
fn guarded<T>(label: &str, call: impl FnOnce() -> T) -> Result<T, PipelineError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let (operator, message) = (label.to_owned(), message(panic.as_ref()).to_owned());
        PipelineError::Panicked { operator, message }
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

fn write_batch(key: String, experiences: &[Experience]) -> Result<WriteBatch, PipelineError> {
    let sample = |experience: &Experience| {
        let refused = |source| PipelineError::Encode { id: experience.eid.uid(), source };
        Sample::new(experience).map_err(refused)
    };
    let samples = experiences.iter().map(sample).collect::<Result<_, _>>()?;
    Ok(WriteBatch { key: key.into(), samples })
}

/// Writes a batch unless it is empty.
fn write(
    writer: &mut dyn ExperienceWriter,
    write_batch: &WriteBatch,
) -> crate::buffer::Result<WriteResult> {
    if write_batch.samples.is_empty() {
        Ok(WriteResult::default())
    } else {
        writer.write(write_batch)
    }
}

/// Closes a writer; keeps it on failure.
fn close(writer: &mut Option<Box<dyn ExperienceWriter>>) -> crate::buffer::Result<()> {
    if let Some(open) = writer {
        open.close()?;
    }
    *writer = None;
    Ok(())
}
