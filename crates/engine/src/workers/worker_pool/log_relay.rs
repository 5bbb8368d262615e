//! Forwards the output of workers to the job's log with run ids. A line arrives as a protocol
//! message, or printed as a record separator and a JSON object, so that the last output of a dying
//! process is logged too.

use rollway_protocol::{LogLine, LogSource, WorkerLogLevel};
use serde::Deserialize;

/// Record separator: first character of a JSON line.
const MARK: char = '\u{1e}';

/// A printed line with its origin.
#[derive(Debug, Deserialize)]
struct Marked {
    #[serde(default = "info", with = "LevelJson")]
    level: WorkerLogLevel,
    logger: Option<String>,
    batch: Option<String>,
    task: Option<u32>,
    run: Option<u32>,
    attempt: Option<u64>,
    line: String,
}

#[derive(Deserialize)]
#[serde(remote = "WorkerLogLevel", rename_all = "lowercase")]
enum LevelJson {
    Debug,
    Info,
    Warning,
    Error,
}

const fn info() -> WorkerLogLevel {
    WorkerLogLevel::Info
}

/// Logs a line that a worker printed.
pub(super) fn printed(worker: &str, stream: &'static str, line: &str) {
    let marked = line.strip_prefix(MARK).and_then(|json| serde_json::from_str(json).ok());
    let Some(Marked { level, logger, batch, task, run, attempt, line }) = marked else {
        tracing::info!(target: "rollway::worker", worker, stream, "{line}");
        return;
    };
    // A logger's lines have no stream.
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
    macro_rules! event {
        ($level:ident) => {
            tracing::$level!(
                target: "rollway::worker",
                worker, logger, batch, task, run, attempt, stream, "{line}"
            )
        };
    }
    match level {
        WorkerLogLevel::Debug => event!(debug),
        WorkerLogLevel::Info => event!(info),
        WorkerLogLevel::Warning => event!(warn),
        WorkerLogLevel::Error => event!(error),
    }
}
