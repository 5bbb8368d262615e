//! Ids of spans and traces, derived from names: the log and the gateway compute the same ids.
//!
//! An id is a prefix of the SHA-256 of a text, such as `rollway:JOB:task:BATCH:TASK` for the trace
//! of a task. `docs/tracing.md` lists the texts.

use std::fmt;
use std::sync::Arc;

use rollway_config::Config;
use rollway_core::{AttemptId, BatchId, BatchKey, BatchStep, RunId, TaskId};
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// Derives the ids of a job's spans.
#[derive(Clone, Debug)]
pub struct SpanNamer {
    job: Arc<str>,
}

impl SpanNamer {
    /// Uses project, group and name of a configuration, joined by slashes.
    pub fn of(config: &Config) -> Self {
        let parts = [&config.project, &config.group, &config.name];
        let parts: Vec<&str> =
            parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        Self::new(&parts.join("/"))
    }

    pub fn new(job: &str) -> Self {
        Self { job: job.into() }
    }

    pub fn job(&self) -> &Arc<str> {
        &self.job
    }

    /// Trace of a task with its runs, attempts and calls.
    pub fn task_trace(&self, batch: &BatchId, task: TaskId) -> TraceId {
        self.trace(format_args!("task:{batch}:{}", task.0))
    }

    /// Trace of a step with its batches, evaluations and weight sync.
    pub fn step_trace(&self, step: impl fmt::Display) -> TraceId {
        self.trace(format_args!("step:{step}"))
    }

    /// Trace of a batch: that of its step, or its own if its id has no step.
    pub fn batch_trace(&self, batch: &BatchId) -> TraceId {
        match batch.priority().step {
            BatchStep::At(step) => self.step_trace(step),
            BatchStep::Last => self.trace(format_args!("batch:{batch}")),
        }
    }

    pub fn step(&self, step: u64) -> SpanId {
        self.span(format_args!("step:{step}"))
    }

    /// Span of the evaluation of one set; its batch id is `<step>/<set>`.
    pub fn eval(&self, batch: &BatchId) -> SpanId {
        self.span(format_args!("eval:{batch}"))
    }

    pub fn sync(&self, step: u64, at: u64) -> SpanId {
        self.span(format_args!("sync:{step}:{at}"))
    }

    pub fn batch(&self, key: BatchKey) -> SpanId {
        self.span(format_args!("batch:{}", key.0))
    }

    pub fn task(&self, key: BatchKey, task: TaskId) -> SpanId {
        self.span(format_args!("task:{}:{}", key.0, task.0))
    }

    /// Span of a run over all its attempts.
    pub fn run(&self, key: BatchKey, task: TaskId, run: RunId) -> SpanId {
        self.span(format_args!("run:{}:{}:{}", key.0, task.0, run.0))
    }

    /// Span of a run in one attempt.
    pub fn attempt(&self, attempt: AttemptId, run: RunId) -> SpanId {
        self.span(format_args!("attempt:{}:{}", attempt.0, run.0))
    }

    pub fn call(&self, attempt: AttemptId, run: RunId, call: u64) -> SpanId {
        self.span(format_args!("call:{}:{}:{call}", attempt.0, run.0))
    }

    /// Id of all runs of an attempt in the trace file.
    pub(super) fn slice(&self, attempt: AttemptId) -> SpanId {
        self.span(format_args!("slice:{}", attempt.0))
    }

    /// Seed for sampling the tasks of a batch.
    pub(super) fn seed(&self, batch: &BatchId) -> u64 {
        u64::from_be_bytes(self.span(format_args!("sample:{batch}")).0)
    }

    fn trace(&self, text: fmt::Arguments<'_>) -> TraceId {
        TraceId(self.digest(text))
    }

    fn span(&self, text: fmt::Arguments<'_>) -> SpanId {
        SpanId(self.digest(text))
    }

    fn digest<const BYTES: usize>(&self, text: fmt::Arguments<'_>) -> [u8; BYTES] {
        let digest = Sha256::digest(format!("rollway:{}:{text}", self.job).as_bytes());
        std::array::from_fn(|index| digest[index])
    }
}

/// Returns the header `traceparent` that makes a span the parent of a server's spans.
pub fn traceparent(trace: TraceId, span: SpanId) -> String {
    format!("00-{trace}-{span}-01")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are prefixes of `printf 'rollway:p/j:task:3:5' | sha256sum`.
    #[test]
    fn ids_are_prefixes_of_documented_hashes() {
        let names = SpanNamer::new("p/j");
        let trace = names.task_trace(&BatchId::from(3), TaskId(5));
        let span = names.attempt(AttemptId(9), RunId(1));
        assert_eq!(trace.to_string(), TRACE);
        assert_eq!(traceparent(trace, span), format!("00-{TRACE}-{SPAN}-01"));
        assert_eq!(names.batch_trace(&"3/math".into()), names.step_trace(3));
        assert_ne!(names.batch_trace(&"math".into()), names.batch_trace(&"code".into()));
    }

    const TRACE: &str = "6bae2781776b12db78631192d41b3d00";
    const SPAN: &str = "d2f260010f4ae1c9";
}
