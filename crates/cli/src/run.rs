//! `rollway run`: runs the job of a configuration, shows it, and ends it when somebody wants that.

#![expect(clippy::print_stdout, reason = "what was asked for goes to standard output")]

use std::sync::Arc;

use rollway::config::{Config, Mode, schema};
use rollway::explorer::{Watcher, Watchers};
use rollway::job::{Job, JobError, State, Summary};
use rollway::trace;
use rollway_cli::log;
use rollway_cli::output::{LogFormat, Output, OutputKind};
use rollway_cli::progress::summary::FinalSummary;
use rollway_cli::progress::{JobTitle, ProgressEnd, ProgressView};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tracing::Level;

use crate::bench::BenchTable;
use crate::serve::serve;
use crate::signals::Signals;
use crate::simulate::simulate;
use crate::{CliError, ConfigArgs, runtime};

/// Prints the JSON Schema of the configuration.
pub(crate) fn print_schema() {
    println!("{:#}", schema());
}

/// Runs the job of a checked configuration to its end.
pub(crate) fn run(config: Config, source: &ConfigArgs, form: LogFormat) -> Result<(), CliError> {
    match config.mode {
        Mode::Simulate => simulate(&config),
        Mode::Serve => serve(&config),
        Mode::Both | Mode::Explore | Mode::Train | Mode::Bench => job(config, source, form),
    }
}

/// Runs a job, and shows it.
fn job(config: Config, source: &ConfigArgs, form: LogFormat) -> Result<(), CliError> {
    let config = config.named();
    let output = Output::stderr(form);
    let names = trace::is_wanted(&config).then(|| trace::Names::of(&config));
    log::install(config.log.level, &output, names);
    if let Some(summary) = Job::finished(&config)? {
        log::emit(&output, Level::INFO, &finished(&summary, &config, source));
        return Ok(());
    }
    let runtime = runtime()?;
    let table = Arc::new(BenchTable::default());
    let view = ProgressView::start(JobTitle::new(&config, Some(source.config.clone())), &output);
    let mut watchers: Vec<Arc<dyn Watcher>> = vec![Arc::clone(&view) as _];
    if config.mode == Mode::Bench {
        watchers.push(Arc::clone(&table) as _);
    }
    let ended = runtime.block_on(follow(config, Watchers::new(watchers), &output));
    // Whoever did not end in time is not waited for again.
    runtime.shutdown_background();
    let summary = match ended? {
        Some(Ok(Ok(summary))) => summary,
        // What was not started has no end.
        Some(Ok(Err(error))) if error.is_input() => return Err(error.into()),
        Some(Ok(Err(error))) => {
            view.end(ProgressEnd::Failed, None);
            return Err(error.into());
        }
        Some(Err(error)) => {
            view.end(ProgressEnd::Failed, None);
            return Err(CliError::Job(format!("the job broke: {error}")));
        }
        None => {
            view.end(ProgressEnd::Stopped, None);
            return Err(CliError::Interrupted);
        }
    };
    let stopped = summary.state == State::Stopped;
    let account = FinalSummary::from(&summary);
    view.end(if stopped { ProgressEnd::Stopped } else { ProgressEnd::Done }, Some(&account));
    if output.kind() != OutputKind::Json {
        // What goes to the same terminal otherwise is there before.
        Output::flush_at_exit();
        print!("{table}");
    }
    if stopped { Err(CliError::Interrupted) } else { Ok(()) }
}

/// What a job came to; none: it was ended at once.
type Outcome = Option<Result<Result<Summary, JobError>, JoinError>>;

/// Follows a job to its end. The first signal ends it cleanly, the second at once.
async fn follow(config: Config, watchers: Watchers, output: &Output) -> Result<Outcome, CliError> {
    let failed = |error| CliError::Job(format!("signals cannot be waited for: {error}"));
    let mut signals = Signals::new().map_err(failed)?;
    let stop = CancellationToken::new();
    let mut running = tokio::spawn(Job::run(config, watchers, stop.clone()));
    loop {
        tokio::select! {
            ended = &mut running => return Ok(Some(ended)),
            () = signals.next() => {
                if stop.is_cancelled() {
                    log::emit(output, Level::WARN, "ended at once; the same command goes on");
                    return Ok(None);
                }
                stop.cancel();
                let words = "ending cleanly; the same command goes on. Once more ends it at once";
                log::emit(output, Level::INFO, words);
            }
        }
    }
}

/// Says that there is nothing to do, and what could be done.
fn finished(summary: &Summary, config: &Config, source: &ConfigArgs) -> String {
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
        "the job `{}` is finished: {steps} steps{scores}\nfolder: {}\nto go on: rollway run {} \
         {key}={}\nto begin anew: rollway run {} name={}-2",
        config.name,
        config.job_dir().display(),
        source.config.display(),
        steps * 2,
        source.config.display(),
        config.name,
    )
}
