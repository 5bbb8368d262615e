//! The `rollway` command as a library: the program and the Python package run it, and tests use
//! its parts. Parses arguments, runs a subcommand, returns its exit code.

/// Prints a line to standard output. A reader that has closed the pipe is no error.
macro_rules! outln {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($message)*);
    }};
}

/// Prints a line to standard error. A reader that has closed the pipe is no error.
macro_rules! errln {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($message)*);
    }};
}

pub mod background_writer;
mod bench;
mod check;
mod debug;
mod init;
pub mod log;
pub mod log_line;
mod migrate;
mod mock_server;
pub mod output;
pub mod progress;
mod renamed;
mod run;
mod serve;
mod servers;
mod signals;
mod simulate;
pub mod styled_line;
pub mod top;
mod trace;
mod view;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as Arguments, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use rollway::config::{Config, ConfigError, ResolvedConfig};
use rollway::job::{JobError, OperatorRegistry};
use rollway_base::{error_chain, resource_remedy};
use tokio::runtime::{Builder, Runtime};

use self::output::{LogFormat, Output};

/// Rollout engine for reinforcement fine-tuning of language models and agents.
#[derive(Debug, Parser)]
#[command(name = "rollway", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the files of a first job into a new folder
    Init(init::InitArgs),
    /// Run the job that a configuration describes
    Run(RunArgs),
    /// Check a configuration and what it names: imports its workflows, starts no job
    Check(ConfigArgs),
    /// Report which keys of a Trinity-RFT configuration work, and what replaces the others
    Migrate(migrate::MigrateArgs),
    /// Run one task once and show messages, tokens, reward and timing
    Debug(ConfigArgs),
    /// Run a mock inference server, to try a configuration without a GPU
    MockServer(mock_server::MockServerArgs),
    /// Run workers on this machine for a job on another machine
    Worker(worker::WorkerArgs),
    /// Export the history of a job for Perfetto (ui.perfetto.dev)
    Trace(trace::TraceArgs),
    /// Show the runners of a running job, stuck ones first, and cancel runs
    Top(TopArgs),
    /// List, add, remove and restart the inference servers of a running job
    Servers(servers::ServersArgs),
    /// Show a job in a browser, live or from its recorded history
    View(view::ViewArgs),
    /// Print the JSON Schema of the configuration, for editors
    Schema,
    /// Print a completion script for a shell
    Completions(CompletionArgs),
}

#[derive(Debug, Arguments)]
struct CompletionArgs {
    /// Shell of the script. bash and zsh: `source <(rollway completions bash)`; fish: `rollway
    /// completions fish | source`
    shell: Shell,
}

#[derive(Debug, Arguments)]
struct TopArgs {
    /// Folder of the job
    #[arg(value_name = "JOB_DIR")]
    job: PathBuf,
    /// Print the table once and exit; the default when standard output is not a terminal
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Arguments)]
struct RunArgs {
    #[command(flatten)]
    source: ConfigArgs,
    /// Format of standard error
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
}

#[derive(Debug, Arguments)]
struct ConfigArgs {
    /// Configuration file (YAML)
    config: PathBuf,
    /// Overrides of the file, such as `explorer.max_timeout=60`
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

impl ConfigArgs {
    /// Returns the command that runs the same job, without the overrides of some keys.
    fn command_without(&self, keys: &[&str]) -> String {
        let is_kept =
            |one: &&String| one.split_once('=').is_none_or(|(key, _)| !keys.contains(&key.trim()));
        let file = self.config.display().to_string();
        let words = std::iter::once(&file).chain(self.overrides.iter().filter(is_kept));
        words.fold("rollway run".to_owned(), |command, word| format!("{command} {}", quoted(word)))
    }
}

/// Quotes a word for a shell, if needed.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-/=:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Error of a subcommand.
#[derive(Debug)]
enum CliError {
    /// Invalid input: nothing was started. Exit code 2.
    Input(String),
    /// The job failed. Exit code 1.
    Job(String),
    /// Interrupted by a signal; reported already. Exit code 130.
    Interrupted,
}

impl From<JobError> for CliError {
    fn from(error: JobError) -> Self {
        let message = error_chain(&error);
        if error.is_input() { Self::Input(message) } else { Self::Job(message) }
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::Input(error_chain(&error))
    }
}

/// Returns the pipeline operators that a configuration can name, or the reason why not.
pub type OperatorSource<'a> = dyn Fn(&Config) -> Result<OperatorRegistry, String> + 'a;

/// Runs the command with its arguments, the first of which is its name. Returns the exit code.
///
/// `operators` makes the pipeline operators that a configuration can name.
pub fn run(arguments: &[OsString], operators: &OperatorSource<'_>) -> u8 {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => return renamed::report(&error, arguments),
    };
    let done = match args.command {
        Command::Run(args) => load(&args.source).and_then(|config| {
            let operators = operators(&config).map_err(CliError::Input)?;
            run::run(config, &args, operators)
        }),
        Command::Check(source) => load(&source).and_then(|config| {
            let operators = operators(&config).map_err(CliError::Input)?;
            check::check(&config, &source, operators)
        }),
        Command::Debug(source) => load(&source).and_then(|config| debug::debug(&config)),
        Command::Init(args) => init::init(&args),
        Command::Migrate(args) => migrate::migrate(&args),
        Command::MockServer(args) => mock_server::mock_server(&args),
        Command::Worker(args) => worker::run_workers(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Top(TopArgs { job, once }) => runtime().and_then(|runtime| {
            let done = runtime.block_on(top::top(&job, once));
            // A request in flight does not delay the exit.
            runtime.shutdown_background();
            done.map_err(CliError::Input)
        }),
        Command::Servers(args) => servers::servers(&args),
        Command::View(args) => view::view(&args),
        Command::Schema => {
            run::print_schema();
            Ok(())
        }
        Command::Completions(CompletionArgs { shell }) => {
            print_completions(shell);
            Ok(())
        }
    };
    Output::flush_at_exit();
    match done {
        Ok(()) => 0,
        Err(CliError::Input(message)) => {
            Output::write_final(&error_message(&message));
            2
        }
        Err(CliError::Job(message)) => {
            Output::write_final(&error_message(&message));
            1
        }
        // 128 + SIGINT, as shells report it.
        Err(CliError::Interrupted) => 130,
    }
}

/// Returns the text of an error, with the remedy if a resource of the machine is exhausted.
fn error_message(message: &str) -> String {
    match resource_remedy(message).filter(|remedy| !message.contains(remedy)) {
        Some(remedy) => format!("error: {message}\nhint: {remedy}"),
        None => format!("error: {message}"),
    }
}

/// Prints the completion script of a shell.
fn print_completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "rollway", &mut script);
    outln!("{}", String::from_utf8_lossy(&script).trim_end());
}

/// Reads and checks a configuration; warnings go to standard error.
fn load(source: &ConfigArgs) -> Result<Config, CliError> {
    let config = Config::load(&source.config)?.with_overrides(&source.overrides)?;
    let ResolvedConfig { config, warnings } = config.resolve()?;
    for warning in warnings {
        errln!("warning: {warning}");
    }
    Ok(config)
}

/// Returns the tokio runtime of a subcommand.
fn runtime() -> Result<Runtime, CliError> {
    let runtime = Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| {
        CliError::Job(format!("cannot start threads: {error}; check the limits of this user"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_resources_have_a_remedy() {
        let hint =
            "\nhint: free disk space, and start the job again: it continues where it stopped";
        let full = "ledger: No space left on device (os error 28)";
        assert_eq!(error_message(full), format!("error: {full}{hint}"));
        // The remedy is not repeated.
        let told = format!("explorer_meta.json: disk is full{hint}");
        assert_eq!(error_message(&told), format!("error: {told}"));
        assert_eq!(error_message("no file"), "error: no file");
    }

    #[test]
    fn commands_in_hints_repeat_the_overrides() {
        let args = ConfigArgs {
            config: "a job.yaml".into(),
            overrides: ["name=p1", "mode=both", "x.args={a: 'b'}"].map(str::to_owned).into(),
        };
        let command = args.command_without(&["mode"]);
        assert_eq!(command, r"rollway run 'a job.yaml' name=p1 'x.args={a: '\''b'\''}'");
    }
}
