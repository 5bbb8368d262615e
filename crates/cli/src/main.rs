//! The `rollway` command: arguments in, an honest exit code out.

#![expect(clippy::print_stderr, reason = "errors are for people, and people read standard error")]

mod bench;
mod check;
mod debug;
mod mock_server;
mod run;
mod serve;
mod signals;
mod simulate;
mod trace;
mod view;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as Arguments, Parser, Subcommand};
use rollway::config::{Config, ConfigError, Resolved};
use rollway::job::JobError;
use rollway_cli::output::{LogFormat, Output};
use tokio::runtime::{Builder, Runtime};

/// Rollout engine for reinforcement fine-tuning of language models and agents.
#[derive(Debug, Parser)]
#[command(name = "rollway", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the job that a configuration describes
    Run(Run),
    /// Say whether a configuration is sound, without running anything
    Check(ConfigArgs),
    /// Run one task once and show everything: messages, tokens, reward, where time went
    Debug(ConfigArgs),
    /// Run a simulated inference server, to try a configuration without a GPU
    MockServer(mock_server::MockServerArgs),
    /// Run workers on this machine for a job on another one
    Worker(worker::WorkerArgs),
    /// Make a file for Perfetto (ui.perfetto.dev) from the history of a job
    Trace(trace::TraceArgs),
    /// Watch the runners of a running job, those that are stuck first, and cancel what hangs
    Top(Top),
    /// Show a job in a browser: a running one live, a finished one as it was recorded
    View(view::ViewArgs),
    /// Print the JSON Schema of the configuration, for editors
    Schema,
}

#[derive(Debug, Arguments)]
struct Top {
    /// The job's folder
    #[arg(value_name = "JOB_DIR")]
    job: PathBuf,
    /// Print it once and end, as when standard output is no terminal
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Arguments)]
struct Run {
    #[command(flatten)]
    source: ConfigArgs,
    /// What standard error looks like
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
}

#[derive(Debug, Arguments)]
struct ConfigArgs {
    /// The configuration, in YAML
    config: PathBuf,
    /// Values that replace those of the file, such as `explorer.max_timeout=60`
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

/// What the user's input and the job came to.
#[derive(Debug)]
enum CliError {
    /// The input is at fault: nothing was started.
    Input(String),
    /// The job did not do what it should.
    Job(String),
    /// Somebody ended it; the words were said already.
    Interrupted,
}

impl From<JobError> for CliError {
    fn from(error: JobError) -> Self {
        if error.is_input() { Self::Input(error.to_string()) } else { Self::Job(error.to_string()) }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::Input(error.to_string())
    }
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(Run { source, log }) => {
            load(&source).and_then(|config| run::run(config, &source, log))
        }
        Command::Check(source) => load(&source).and_then(|config| check::check(&config, &source)),
        Command::Debug(source) => load(&source).and_then(|config| debug::debug(&config)),
        Command::MockServer(args) => mock_server::mock_server(&args),
        Command::Worker(args) => worker::run_workers(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Top(Top { job, once }) => runtime().and_then(|runtime| {
            let done = runtime.block_on(rollway_cli::top::top(&job, once));
            // Nobody waits for a key that is not pressed.
            runtime.shutdown_background();
            done.map_err(CliError::Input)
        }),
        Command::View(args) => view::view(&args),
        Command::Schema => {
            run::print_schema();
            Ok(())
        }
    };
    Output::flush_at_exit();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(CliError::Input(message)) => {
            Output::write_final(&format!("error: {message}"));
            ExitCode::from(2)
        }
        Err(CliError::Job(message)) => {
            Output::write_final(&format!("error: {message}"));
            ExitCode::FAILURE
        }
        // As shells say it of a program that Ctrl-C has ended.
        Err(CliError::Interrupted) => ExitCode::from(130),
    }
}

/// Reads and checks a configuration; what there is to know about it goes to standard error.
fn load(source: &ConfigArgs) -> Result<Config, CliError> {
    let config = Config::load(&source.config)?.with_overrides(&source.overrides)?;
    let Resolved { config, warnings } = config.resolve()?;
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    Ok(config)
}

/// Returns threads for everything that waits.
fn runtime() -> Result<Runtime, CliError> {
    let runtime = Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| CliError::Job(format!("no threads could be started: {error}")))
}
