//! What workers say in words, put into the log with the run that said it.
//!
//! A worker says it in a message of the protocol, or, if what it prints is read here, in the line
//! itself: a record separator and a JSON object, so that the last words of a process that dies are
//! there too.

use rollway_protocol::{LogLine, LogSource, WorkerLogLevel};
use serde::Deserialize;

/// What begins a line that says where it comes from.
const MARK: char = '\u{1e}';

/// A line that says where it comes from.
#[derive(Debug, Default, Deserialize)]
struct Marked {
    #[serde(default)]
    level: Level,
    logger: Option<String>,
    batch: Option<String>,
    task: Option<u32>,
    run: Option<u32>,
    attempt: Option<u64>,
    line: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Debug,
    #[default]
    Info,
    Warning,
    Error,
}

/// Logs a line that a worker printed.
pub(super) fn printed(worker: &str, stream: &'static str, line: &str) {
    let marked = line.strip_prefix(MARK).and_then(|json| serde_json::from_str(json).ok());
    let Some(Marked { level, logger, batch, task, run, attempt, line }) = marked else {
        tracing::info!(target: "rollway::worker", worker, stream, "{line}");
        return;
    };
    let level = match level {
        Level::Debug => WorkerLogLevel::Debug,
        Level::Info => WorkerLogLevel::Info,
        Level::Warning => WorkerLogLevel::Warning,
        Level::Error => WorkerLogLevel::Error,
    };
    // What was logged is not a matter of streams.
    let stream = logger.is_none().then_some(stream);
    let source = LogSource {
        logger: logger.map(Into::into),
        batch: batch.map(Into::into),
        task,
        run,
        attempt,
    };
    log(Some(worker), stream, level, &source, &line);
}

/// Logs a line that a worker sent.
pub(super) fn sent(line: &LogLine) {
    log(None, None, line.level, &line.source, &line.line);
}

fn log(
    worker: Option<&str>,
    stream: Option<&str>,
    level: WorkerLogLevel,
    source: &LogSource,
    line: &str,
) {
    let LogSource { logger, batch, task, run, attempt } = source;
    let (logger, batch) = (logger.as_deref(), batch.as_deref());
    macro_rules! say {
        ($level:ident) => {
            tracing::$level!(
                target: "rollway::worker",
                worker, logger, batch, task, run, attempt, stream, "{line}"
            )
        };
    }
    match level {
        WorkerLogLevel::Debug => say!(debug),
        WorkerLogLevel::Info => say!(info),
        WorkerLogLevel::Warning => say!(warn),
        WorkerLogLevel::Error => say!(error),
    }
}
