//! What the engine logs, and what workers print, goes to Python's `logging`.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::runtime;

/// How many lines may wait for Python; more are counted and dropped.
const WAITING_MAX: usize = 10_000;

static WAITING: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Begins to pass on what is logged, unless somebody else in the process listens already.
pub(crate) fn install() {
    let _ = tracing::subscriber::set_global_default(Logger);
}

struct Logger;

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries below have much to say about every message.
        metadata.target().trim_start_matches('_').starts_with("rollway")
            && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        if WAITING.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let name = logger_name(event.metadata().target());
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            Level::DEBUG | Level::TRACE => 10,
        };
        runtime::in_python(move |py| {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            let dropped = DROPPED.swap(0, Ordering::Relaxed);
            let mut text = line.text();
            if dropped > 0 {
                let _ = write!(text, " ({dropped} lines were dropped before this one)");
            }
            // A log that cannot be written to is no reason to stop.
            let _ = log(py, &name, level, &text, &line.names);
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns the Python logger of a tracing target: those of all our crates are below `rollway`.
fn logger_name(target: &str) -> String {
    let target = target.trim_start_matches('_').replace("::", ".");
    match target.strip_prefix("rollway_") {
        Some(rest) => format!("rollway.{rest}"),
        None => target,
    }
}

fn log(
    py: Python<'_>,
    name: &str,
    level: i32,
    text: &str,
    names: &[(&'static str, String)],
) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (name,))?;
    let extra = PyDict::new(py);
    for (name, value) in names {
        extra.set_item(format!("rollway_{name}"), value)?;
    }
    let how = PyDict::new(py);
    how.set_item("extra", extra)?;
    logger.call_method("log", (level, "%s", text), Some(&how)).map(|_| ())
}

/// An event in words: the fields, then the message.
#[derive(Default)]
struct Line {
    fields: String,
    message: String,
    /// The names of the run that it is about.
    names: Vec<(&'static str, String)>,
}

/// Fields that become attributes of a record, as `rollway_batch` and so on.
const NAMES: [&str; 5] = ["batch", "task", "run", "attempt", "logger"];

impl Line {
    fn text(&self) -> String {
        if self.fields.is_empty() {
            self.message.clone()
        } else {
            format!("[{}] {}", self.fields, self.message)
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            if NAMES.contains(&field.name()) {
                self.names.push((field.name(), format!("{value:?}")));
            }
            let gap = if self.fields.is_empty() { "" } else { " " };
            write!(self.fields, "{gap}{}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
