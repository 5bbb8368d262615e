//! What the engine logs, as lines for people or as JSON for programs.

use std::fmt::{self, Write as _};
use std::time::SystemTime;

use clap::ValueEnum;
use jiff::Timestamp;
use rollway::config::LogLevel;
use rollway::trace::Names;
use rollway_core::{AttemptId, BatchId, RunId, TaskId};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::line::{Line, Look};
use crate::output::{Kind, Output};

/// What standard error looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A live view on a terminal, lines of text elsewhere
    #[default]
    Auto,
    /// Lines of text
    Plain,
    /// One JSON object per line
    Json,
}

/// Begins to write down what is logged. `names`: those of the job's spans, if it is traced.
pub fn install(level: LogLevel, output: &Output, names: Option<Names>) {
    let level = match level {
        LogLevel::Trace => Level::TRACE,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warning => Level::WARN,
        LogLevel::Error => Level::ERROR,
    };
    // Somebody who listens already is as good.
    let _ =
        tracing::subscriber::set_global_default(Logger { level, output: output.clone(), names });
}

/// Writes a line in the way of the log.
pub fn say(output: &Output, level: Level, message: &str) {
    write(output, level, message, Map::new());
}

/// What is said in place of what could not be written.
pub(crate) fn left_out(count: u64) -> String {
    format!("{} WARN  {count} lines were left out: nobody read them\n", stamp(SystemTime::now()))
}

/// The same, for programs.
pub(crate) fn left_out_json(count: u64) -> String {
    let line = json!({
        "time": stamp(SystemTime::now()), "event": "log", "level": "warn",
        "message": "lines were left out: nobody read them", "fields": {"lines": count},
    });
    format!("{line}\n")
}

fn write(output: &Output, level: Level, message: &str, fields: Map<String, Value>) {
    let now = SystemTime::now();
    match output.kind() {
        Kind::Json => {
            let level = level.as_str().to_ascii_lowercase();
            let mut line = json!({
                "time": stamp(now), "event": "log", "level": level, "message": message,
            });
            if !fields.is_empty() {
                line["fields"] = Value::Object(fields);
            }
            output.raw(&line.to_string());
        }
        Kind::Plain | Kind::Live => {
            let mut message = message.to_owned();
            for (name, value) in &fields {
                // Writing to a string cannot fail.
                let _ = match value {
                    Value::String(text) => write!(message, " {name}={text}"),
                    value => write!(message, " {name}={value}"),
                };
            }
            output.print(&lines(output.kind(), now, level, &message));
        }
    }
}

/// Returns a message as lines: with its time, and what follows the first line below it.
fn lines(kind: Kind, now: SystemTime, level: Level, message: &str) -> Vec<Line> {
    let stamp = stamp(now);
    // On a terminal the day is known.
    let stamp = if kind == Kind::Live { &stamp[11..] } else { &stamp };
    let look = match level {
        Level::ERROR => Look::Red,
        Level::WARN => Look::Yellow,
        Level::INFO => Look::Cyan,
        _ => Look::Faint,
    };
    let begin = |stamp: &str, level: &str| {
        Line::new().with(stamp, Look::Faint).text(" ").with(format!("{level:<5}"), look).text(" ")
    };
    let mut lines = Vec::new();
    for text in message.lines() {
        let begin = match lines.is_empty() {
            true => begin(stamp, level.as_str()),
            false => begin(&" ".repeat(stamp.len()), ""),
        };
        lines.push(begin.text(text));
    }
    lines
}

/// Returns a time in UTC in the format of RFC 3339, without fractions of a second.
pub fn stamp(at: SystemTime) -> String {
    let time = Timestamp::try_from(at).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

struct Logger {
    level: Level,
    output: Output,
    names: Option<Names>,
}

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries below have much to say about every message.
        metadata.target().starts_with("rollway") && *metadata.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        if let Some(names) = &self.names {
            said.identify(names);
        }
        write(&self.output, *event.metadata().level(), &said.message, said.fields);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What an event says: the message, and the fields.
#[derive(Default)]
struct Said {
    fields: Map<String, Value>,
    message: String,
}

impl Said {
    /// Adds the trace and the span of the run that it is about, if it is about one.
    fn identify(&mut self, names: &Names) {
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

    fn keep(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.message = message,
            (name, value) => {
                self.fields.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, Value::String(value.to_owned()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_run_names_its_span() {
        let mut said = Said::default();
        said.fields.insert("batch".to_owned(), "3/math".into());
        said.identify(&Names::new("p/j"));
        assert_eq!(said.fields.len(), 1, "a batch alone is no task");
        for (name, number) in [("task", 5), ("run", 1), ("attempt", 9)] {
            said.fields.insert(name.to_owned(), number.into());
        }
        said.identify(&Names::new("p/j"));
        let names = Names::new("p/j");
        let trace = names.task_trace(&"3/math".into(), TaskId(5)).to_string();
        let span = names.attempt(AttemptId(9), RunId(1)).to_string();
        assert_eq!(said.fields["trace_id"], trace);
        assert_eq!(said.fields["span_id"], span);
    }

    #[test]
    fn what_follows_the_first_line_stands_below_it() {
        let lines = lines(Kind::Live, SystemTime::UNIX_EPOCH, Level::WARN, "one\ntwo");
        let lines: Vec<String> = lines.iter().map(Line::to_string).collect();
        assert_eq!(lines, ["00:00:00Z WARN  one", "                two"]);
    }
}
