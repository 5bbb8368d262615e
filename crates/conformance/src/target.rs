//! The worker under test: start and exit.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use rollway_base::Address;
use rollway_base::Secret;
use rollway_protocol::env;

/// Connection parameters of a worker.
#[derive(Clone, Debug)]
pub struct TargetEnv {
    pub address: Address,
    pub secret: Secret,
    pub token: String,
}

type Task = dyn Fn(TargetEnv) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The worker under test.
pub enum ConformanceTarget {
    /// A program and its arguments; parameters are in its environment.
    Command(Vec<OsString>),
    /// A task of this process.
    Task(Box<Task>),
    /// A worker that the user starts once; the function prints the parameters.
    Manual(Box<dyn Fn(&TargetEnv)>),
}

impl fmt::Debug for ConformanceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(command) => f.debug_tuple("Command").field(command).finish(),
            Self::Task(_) => f.write_str("Task"),
            Self::Manual(_) => f.write_str("Manual"),
        }
    }
}

impl ConformanceTarget {
    /// Returns whether the kit can start it repeatedly.
    pub(super) fn is_restartable(&self) -> bool {
        !matches!(self, Self::Manual(_))
    }

    pub(super) fn start(&self, parameters: TargetEnv) -> io::Result<RunningTarget> {
        match self {
            Self::Command(command) => {
                let Some((program, arguments)) = command.split_first() else {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
                };
                let child = Command::new(program)
                    .args(arguments)
                    .env(env::ADDRESS, parameters.address.to_string())
                    .env(env::SECRET, parameters.secret.reveal())
                    .env(env::TOKEN, &parameters.token)
                    .stdin(Stdio::null())
                    // Standard output is for the report.
                    .stdout(io::stderr())
                    .kill_on_drop(true)
                    .spawn()?;
                Ok(RunningTarget::Child(child))
            }
            Self::Task(task) => Ok(RunningTarget::Task(tokio::spawn(task(parameters)))),
            Self::Manual(print) => {
                print(&parameters);
                Ok(RunningTarget::Unknown)
            }
        }
    }
}

/// A started worker. Dropping it kills it, if possible.
pub(super) enum RunningTarget {
    Child(Child),
    Task(JoinHandle<Result<(), String>>),
    Unknown,
}

#[derive(Debug)]
pub(super) enum TargetEnd {
    Success,
    Failure(String),
    StillRunning,
    Unknown,
}

impl RunningTarget {
    /// Waits for the exit.
    pub(super) async fn ended(&mut self, timeout: Duration) -> TargetEnd {
        let ended = async {
            match self {
                Self::Child(child) => match child.wait().await {
                    Ok(status) if status.success() => TargetEnd::Success,
                    Ok(status) => TargetEnd::Failure(status.to_string()),
                    Err(error) => TargetEnd::Failure(error.to_string()),
                },
                Self::Task(task) => match task.await {
                    Ok(Ok(())) => TargetEnd::Success,
                    Ok(Err(error)) => TargetEnd::Failure(error),
                    Err(error) => TargetEnd::Failure(error.to_string()),
                },
                Self::Unknown => TargetEnd::Unknown,
            }
        };
        tokio::time::timeout(timeout, ended).await.unwrap_or(TargetEnd::StillRunning)
    }
}

impl Drop for RunningTarget {
    fn drop(&mut self) {
        if let Self::Task(task) = self {
            task.abort();
        }
    }
}
