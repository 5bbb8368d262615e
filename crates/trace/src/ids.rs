//! Names of spans and traces, made of the names of what they show: whoever knows a job and an
//! attempt knows the span, without asking anybody.
//!
//! An id is the beginning of the SHA-256 of a text: `rollway:JOB:task:BATCH:TASK` for the trace of
//! a task. `docs/tracing.md` has them all.

use std::fmt;
use std::sync::Arc;

use rollway_config::Config;
use rollway_core::{AttemptId, BatchId, BatchKey, BatchStep, RunId, TaskId};
use sha2::{Digest, Sha256};

/// Names a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// Names a span of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Makes the names of a job's spans.
#[derive(Clone, Debug)]
pub struct SpanNamer {
    job: Arc<str>,
}

impl SpanNamer {
    /// Returns the names of the job of a configuration: its project, group and name, with slashes
    /// between them.
    pub fn of(config: &Config) -> Self {
        let parts = [&config.project, &config.group, &config.name];
        let parts: Vec<&str> =
            parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        Self::new(&parts.join("/"))
    }

    /// Returns the names of a job.
    pub fn new(job: &str) -> Self {
        Self { job: job.into() }
    }

    /// The job.
    pub fn job(&self) -> &Arc<str> {
        &self.job
    }

    /// The trace of a task: everything that is done for it.
    pub fn task_trace(&self, batch: &BatchId, task: TaskId) -> TraceId {
        self.trace(format_args!("task:{batch}:{}", task.0))
    }

    /// The trace of what happens in a step: batches, evaluations, new weights.
    pub fn step_trace(&self, step: impl fmt::Display) -> TraceId {
        self.trace(format_args!("step:{step}"))
    }

    /// The trace that a batch is in: that of its step, or its own if its name has no number.
    pub fn batch_trace(&self, batch: &BatchId) -> TraceId {
        match batch.priority().step {
            BatchStep::At(step) => self.step_trace(step),
            BatchStep::Last => self.trace(format_args!("batch:{batch}")),
        }
    }

    /// The span of a step.
    pub fn step(&self, step: u64) -> SpanId {
        self.span(format_args!("step:{step}"))
    }

    /// The span of the evaluation of one set: its batch is called `<step>/<set>`.
    pub fn eval(&self, batch: &BatchId) -> SpanId {
        self.span(format_args!("eval:{batch}"))
    }

    /// The span of an exchange of weights.
    pub fn sync(&self, step: u64, at: u64) -> SpanId {
        self.span(format_args!("sync:{step}:{at}"))
    }

    /// The span of a batch.
    pub fn batch(&self, key: BatchKey) -> SpanId {
        self.span(format_args!("batch:{}", key.0))
    }

    /// The span of a task.
    pub fn task(&self, key: BatchKey, task: TaskId) -> SpanId {
        self.span(format_args!("task:{}:{}", key.0, task.0))
    }

    /// The span of a run, over all its attempts.
    pub fn run(&self, key: BatchKey, task: TaskId, run: RunId) -> SpanId {
        self.span(format_args!("run:{}:{}:{}", key.0, task.0, run.0))
    }

    /// The span of a run in one attempt.
    pub fn attempt(&self, attempt: AttemptId, run: RunId) -> SpanId {
        self.span(format_args!("attempt:{}:{}", attempt.0, run.0))
    }

    /// The span of a model call.
    pub fn call(&self, attempt: AttemptId, run: RunId, call: u64) -> SpanId {
        self.span(format_args!("call:{}:{}:{call}", attempt.0, run.0))
    }

    /// Returns a number for a batch, from which those of its tasks are drawn.
    pub(super) fn seed(&self, batch: &BatchId) -> u64 {
        u64::from_be_bytes(self.span(format_args!("sample:{batch}")).0)
    }

    fn trace(&self, what: fmt::Arguments<'_>) -> TraceId {
        TraceId(self.digest(what))
    }

    fn span(&self, what: fmt::Arguments<'_>) -> SpanId {
        SpanId(self.digest(what))
    }

    fn digest<const BYTES: usize>(&self, what: fmt::Arguments<'_>) -> [u8; BYTES] {
        let digest = Sha256::digest(format!("rollway:{}:{what}", self.job).as_bytes());
        std::array::from_fn(|index| digest[index])
    }
}

/// Returns the header `traceparent` that makes a span the parent of what a server does.
pub fn traceparent(trace: TraceId, span: SpanId) -> String {
    format!("00-{trace}-{span}-01")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `printf 'rollway:p/j:task:3:5' | sha256sum` and its like begin with.
    #[test]
    fn ids_can_be_worked_out_by_anybody() {
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
