//! The `rollway` command: arguments in, an honest exit code out.

#![expect(clippy::print_stderr, reason = "errors are for people, and people read standard error")]

mod config;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Run {
        /// The configuration, in YAML
        config: PathBuf,
    },
    /// Say whether a configuration is sound, without running anything
    Check {
        /// The configuration, in YAML
        config: PathBuf,
    },
}

/// What the user's input and the job came to.
#[derive(Debug)]
enum Failure {
    /// The input is at fault: nothing was started.
    Input(String),
    /// The job did not do what it should.
    Job(String),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run { config } => config::load(&config).and_then(|config| run::run(&config)),
        Command::Check { config: path } => config::load(&path).map(|_| {
            eprintln!("{}: sound", path.display());
        }),
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
