//! `rollway run`: runs the job of a configuration, shows its progress and stops it on a signal.

use std::sync::Arc;

use crate::log;
use crate::output::{Output, OutputKind};
use crate::progress::summary::FinalSummary;
use crate::progress::{JobTitle, ProgressEnd, ProgressView};
use rollway::config::{Config, Mode, schema};
use rollway::explorer::{JobObserver, JobObservers};
use rollway::job::{Job, JobError, OperatorRegistry, Summary, SummaryState};
use rollway::trace;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tracing::Level;

use crate::bench::BenchTable;
use crate::serve::serve;
use crate::signals::Signals;
use crate::simulate::simulate;
use crate::{CliError, ConfigArgs, RunArgs, runtime};

/// Prints the JSON Schema of the configuration.
pub(crate) fn print_schema() {
    outln!("{:#}", schema());
}

/// Runs the job of a checked configuration to its end.
pub(crate) fn run(
    config: Config,
    args: &RunArgs,
    operators: OperatorRegistry,
) -> Result<(), CliError> {
    match config.mode {
        Mode::Simulate => simulate(&config),
        Mode::Serve => serve(&config, &operators),
        Mode::Both | Mode::Explore | Mode::Train | Mode::Bench => job(config, args, operators),
    }
}

/// Runs a job and shows its progress.
fn job(config: Config, args: &RunArgs, operators: OperatorRegistry) -> Result<(), CliError> {
    let config = config.named();
    let (source, output) = (&args.source, Output::stderr(args.log));
    let names = trace::is_wanted(&config).then(|| trace::SpanNamer::of(&config));
    log::install(config.log.level, &output, names);
    if let Some(summary) = Job::finished(&config)? {
        log::emit(&output, Level::INFO, &finished_message(&summary, &config, source));
        return Ok(());
    }
    let runtime = runtime()?;
    let table = Arc::new(BenchTable::default());
    let view = ProgressView::start(
        JobTitle::new(&config, Some(source.command_without(&["mode"]))),
        &output,
    );
    let mut watchers: Vec<Arc<dyn JobObserver>> = vec![Arc::clone(&view) as _];
    if config.mode == Mode::Bench {
        watchers.push(Arc::clone(&table) as _);
    }
    let job = config.clone();
    let ended =
        runtime.block_on(run_to_end(config, JobObservers::new(watchers), operators, &output));
    // Tasks that did not end in time are not awaited again.
    runtime.shutdown_background();
    let summary = match ended? {
        Some(Ok(Ok(summary))) => summary,
        // A job that was not started has no summary.
        Some(Ok(Err(error))) if error.is_input() => return Err(error.into()),
        Some(Ok(Err(error))) => {
            let totals = Job::summary(&job).map(|summary| FinalSummary::from(&summary));
            view.end(ProgressEnd::Failed, totals.as_ref());
            return Err(error.into());
        }
        Some(Err(error)) => {
            view.end(ProgressEnd::Failed, None);
            return Err(CliError::Job(format!(
                "internal error: {error}; run the same command to resume"
            )));
        }
        None => {
            view.end(ProgressEnd::Stopped, None);
            return Err(CliError::Interrupted);
        }
    };
    let stopped = summary.state == SummaryState::Stopped;
    let totals = FinalSummary::from(&summary);
    view.end(if stopped { ProgressEnd::Stopped } else { ProgressEnd::Done }, Some(&totals));
    if output.kind() != OutputKind::Json {
        // Log lines on the same terminal come first.
        Output::flush_at_exit();
        let table = table.to_string();
        if !table.is_empty() {
            outln!("{}", table.trim_end());
        }
    }
    if stopped { Err(CliError::Interrupted) } else { Ok(()) }
}

/// Result of a job. `None`: stopped immediately.
type JobOutcome = Option<Result<Result<Summary, JobError>, JoinError>>;

/// Message after the first signal.
const STOPPING: &str =
    "stopping; press Ctrl-C again to stop immediately. Run the same command to resume";

/// Message after the second signal.
const STOPPED_IMMEDIATELY: &str = "stopped immediately; run the same command to resume";

/// Runs a job to its end. The first signal stops it gracefully, the second immediately.
async fn run_to_end(
    config: Config,
    watchers: JobObservers,
    operators: OperatorRegistry,
    output: &Output,
) -> Result<JobOutcome, CliError> {
    let mut signals = Signals::new()?;
    let stop = CancellationToken::new();
    let mut running = tokio::spawn(Job::run(config, watchers, Arc::new(operators), stop.clone()));
    loop {
        tokio::select! {
            ended = &mut running => return Ok(Some(ended)),
            () = signals.next() => {
                if stop.is_cancelled() {
                    log::emit(output, Level::WARN, STOPPED_IMMEDIATELY);
                    return Ok(None);
                }
                stop.cancel();
                log::emit(output, Level::INFO, STOPPING);
            }
        }
    }
}

/// Returns the message for a job that is finished already, with possible next commands.
fn finished_message(summary: &Summary, config: &Config, source: &ConfigArgs) -> String {
    let percent = |score: Option<f64>| score.map(|score| format!("{:.1} %", 100.0 * score));
    let scores = match (percent(summary.first_eval), percent(summary.last_eval)) {
        (Some(first), Some(last)) => format!(", evaluations {first} → {last}"),
        _ => String::new(),
    };
    let (key, steps) = match config.mode {
        Mode::Train => ("trainer.total_steps", summary.trained_steps),
        _ => ("buffer.total_steps", summary.steps),
    };
    format!(
        "the job `{}` is finished: {steps} steps{scores}\nfolder: {}\nto continue: {} \
         {key}={}\nto start over: {} name={}-2",
        config.name,
        config.job_dir().display(),
        source.command_without(&[key]),
        steps * 2,
        source.command_without(&["name"]),
        config.name,
    )
}
