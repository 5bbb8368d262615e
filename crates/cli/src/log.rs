//! `tracing` events of the engine as log lines on an [`Output`].

use std::fmt;
use std::time::SystemTime;

use rollway::config::LogLevel;
use rollway::trace::SpanNamer;
use rollway_core::{AttemptId, BatchId, RunId, TaskId};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::log_line;
use crate::output::{Output, OutputKind};

/// Installs the process-wide subscriber. `names`: the job's span names, if it is traced.
///
/// A subscriber that is installed already stays.
pub fn install(level: LogLevel, output: &Output, names: Option<SpanNamer>) {
    let level = match level {
        LogLevel::Trace => Level::TRACE,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warning => Level::WARN,
        LogLevel::Error => Level::ERROR,
    };
    // Only crates of this workspace: libraries log details of every message.
    let filter = Targets::new().with_target("rollway", level);
    let layer = OutputLayer { output: output.clone(), names };
    let _ = registry().with(filter).with(layer).try_init();
}

/// Writes one log line.
pub fn emit(output: &Output, level: Level, message: &str) {
    write(output, level, message, Map::new());
}

fn write(output: &Output, level: Level, message: &str, fields: Map<String, Value>) {
    let now = SystemTime::now();
    match output.kind() {
        OutputKind::Json => output.raw(&log_line::json_line(now, level, message, fields)),
        kind @ (OutputKind::Plain | OutputKind::Live) => {
            let with_date = kind == OutputKind::Plain;
            output.print(&log_line::text_lines(now, level, message, &fields, with_date));
        }
    }
}

/// Layer that writes each event to an output.
struct OutputLayer {
    output: Output,
    names: Option<SpanNamer>,
}

impl<S: Subscriber> Layer<S> for OutputLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut record = LogRecord::default();
        event.record(&mut record);
        if let Some(names) = &self.names {
            record.add_span_ids(names);
        }
        write(&self.output, *event.metadata().level(), &record.message, record.fields);
    }
}

/// Message and fields of an event.
#[derive(Default)]
struct LogRecord {
    fields: Map<String, Value>,
    message: String,
}

impl LogRecord {
    /// Adds trace and span id of the run that the event names, if it names one.
    fn add_span_ids(&mut self, names: &SpanNamer) {
        let number = |name: &str| self.fields.get(name).and_then(Value::as_u64);
        let small = |name: &str| number(name).and_then(|number| u32::try_from(number).ok());
        let batch = self.fields.get("batch").and_then(Value::as_str).map(BatchId::from);
        let trace = batch
            .zip(small("task"))
            .map(|(batch, task)| names.task_trace(&batch, TaskId(task)).to_string());
        let span = number("attempt")
            .zip(small("run"))
            .map(|(attempt, run)| names.attempt(AttemptId(attempt), RunId(run)).to_string());
        for (name, id) in [("trace_id", trace), ("span_id", span)] {
            if let Some(id) = id {
                self.fields.insert(name.to_owned(), id.into());
            }
        }
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.message = message,
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for LogRecord {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::String(value.to_owned()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_about_a_run_has_trace_and_span_id() {
        let mut record = LogRecord::default();
        record.fields.insert("batch".to_owned(), "3/math".into());
        record.add_span_ids(&SpanNamer::new("p/j"));
        assert_eq!(record.fields.len(), 1, "a batch alone names no task");
        for (name, number) in [("task", 5), ("run", 1), ("attempt", 9)] {
            record.fields.insert(name.to_owned(), number.into());
        }
        record.add_span_ids(&SpanNamer::new("p/j"));
        let names = SpanNamer::new("p/j");
        let trace = names.task_trace(&"3/math".into(), TaskId(5)).to_string();
        let span = names.attempt(AttemptId(9), RunId(1)).to_string();
        assert_eq!(record.fields["trace_id"], trace);
        assert_eq!(record.fields["span_id"], span);
    }
}
