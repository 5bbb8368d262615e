//! `tracing` events of the engine and output of workers as records of Python's `logging`.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::runtime;

/// Maximum number of records that wait for Python; further ones are dropped and counted.
const QUEUE_CAPACITY: usize = 10_000;

static QUEUED: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

/// Installs the process-wide subscriber. A subscriber that is installed already stays.
pub(crate) fn install() {
    // Only crates of this workspace: libraries log details of every message. The second target is
    // this crate.
    let filter =
        Targets::new().with_target("rollway", Level::INFO).with_target("_rollway", Level::INFO);
    let _ = registry().with(filter).with(PythonLayer).try_init();
}

/// Layer that passes each event to Python.
struct PythonLayer;

impl<S: Subscriber> Layer<S> for PythonLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if QUEUED.fetch_add(1, Ordering::Relaxed) >= QUEUE_CAPACITY {
            QUEUED.fetch_sub(1, Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut record = LogRecord::default();
        event.record(&mut record);
        // The name of this crate is that of a private Python module.
        let logger = logger_name(event.metadata().target());
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            Level::DEBUG | Level::TRACE => 10,
        };
        runtime::in_python(move |py| {
            QUEUED.fetch_sub(1, Ordering::Relaxed);
            let dropped = DROPPED.swap(0, Ordering::Relaxed);
            let mut text = record.text();
            if dropped > 0 {
                let _ = write!(text, " ({dropped} log lines dropped before this one)");
            }
            // A log that cannot be written is no reason to stop the job.
            let _ = log(py, &logger, level, &text, &record.attributes);
        });
    }
}

fn log(
    py: Python<'_>,
    logger: &str,
    level: i32,
    text: &str,
    attributes: &[(&'static str, String)],
) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (logger,))?;
    let extra = PyDict::new(py);
    for (name, value) in attributes {
        extra.set_item(format!("rollway_{name}"), value)?;
    }
    let keywords = PyDict::new(py);
    keywords.set_item("extra", extra)?;
    logger.call_method("log", (level, "%s", text), Some(&keywords)).map(|_| ())
}

/// Message, fields and attributes of an event.
#[derive(Default)]
struct LogRecord {
    fields: String,
    message: String,
    attributes: Vec<(&'static str, String)>,
}

/// Fields that become attributes of the Python record, such as `rollway_batch`.
const ATTRIBUTE_FIELDS: [&str; 5] = ["batch", "task", "run", "attempt", "logger"];

impl LogRecord {
    fn text(&self) -> String {
        if self.fields.is_empty() {
            self.message.clone()
        } else {
            format!("[{}] {}", self.fields, self.message)
        }
    }
}

impl Visit for LogRecord {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            if ATTRIBUTE_FIELDS.contains(&field.name()) {
                self.attributes.push((field.name(), format!("{value:?}")));
            }
            let gap = if self.fields.is_empty() { "" } else { " " };
            write!(self.fields, "{gap}{}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Returns the Python logger of a tracing target: those of all crates are below `rollway`.
fn logger_name(target: &str) -> String {
    let target = target.trim_start_matches('_').replace("::", ".");
    match target.strip_prefix("rollway_") {
        Some(rest) => format!("rollway.{rest}"),
        None => target,
    }
}
