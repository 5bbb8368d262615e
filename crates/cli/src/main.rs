//! The `rollway` command: arguments in, an honest exit code out.

#![expect(clippy::print_stderr, reason = "errors are for people, and people read standard error")]

mod imitate;
mod log;
mod run;
mod serve;
mod simulate;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as Arguments, Parser, Subcommand};
use rollway::config::{Config, ConfigError, Resolved};

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
    Run(Source),
    /// Say whether a configuration is sound, without running anything
    Check(Source),
    /// Run a simulated inference server, to try a configuration without a GPU
    Imitate(imitate::Imitation),
    /// Print the JSON Schema of the configuration, for editors
    Schema,
}

#[derive(Debug, Arguments)]
struct Source {
    /// The configuration, in YAML
    config: PathBuf,
    /// Values that replace those of the file, such as `explorer.max_timeout=60`
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

/// What the user's input and the job came to.
#[derive(Debug)]
enum Failure {
    /// The input is at fault: nothing was started.
    Input(String),
    /// The job did not do what it should.
    Job(String),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Input(error.to_string())
    }
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(source) => load(&source).and_then(|config| run::run(&config)),
        Command::Check(source) => load(&source).map(|_| {
            eprintln!("{}: sound", source.config.display());
        }),
        Command::Imitate(imitation) => imitate::imitate(&imitation),
        Command::Schema => {
            run::print_schema();
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Input(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Job(message)) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Reads and checks a configuration; what there is to know about it goes to standard error.
fn load(source: &Source) -> Result<Config, Failure> {
    let config = Config::load(&source.config)?.with_overrides(&source.overrides)?;
    let Resolved { config, warnings } = config.resolve()?;
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    Ok(config)
}
