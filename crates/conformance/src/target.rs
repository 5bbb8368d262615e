//! The worker under test: how it is started, and how it ended.

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

/// What a worker has to know in order to join.
#[derive(Clone, Debug)]
pub struct TargetEnv {
    /// Where the engine listens.
    pub address: Address,
    /// The engine's secret.
    pub secret: Secret,
    /// The worker's token.
    pub token: String,
}

type Task = dyn Fn(TargetEnv) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The worker under test.
pub enum ConformanceTarget {
    /// A program and its arguments. The invitation is in its environment.
    Command(Vec<OsString>),
    /// Something in this process.
    Task(Box<Task>),
    /// Somebody starts it by hand, once, when told.
    ByHand(Box<dyn Fn(&TargetEnv)>),
}

impl fmt::Debug for ConformanceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(command) => f.debug_tuple("Command").field(command).finish(),
            Self::Task(_) => f.write_str("Task"),
            Self::ByHand(_) => f.write_str("ByHand"),
        }
    }
}

impl ConformanceTarget {
    /// Tells whether it can be started as often as needed.
    pub(super) fn is_ours(&self) -> bool {
        !matches!(self, Self::ByHand(_))
    }

    pub(super) fn start(&self, invitation: TargetEnv) -> io::Result<RunningTarget> {
        match self {
            Self::Command(command) => {
                let Some((program, arguments)) = command.split_first() else {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
                };
                let child = Command::new(program)
                    .args(arguments)
                    .env(env::ADDRESS, invitation.address.to_string())
                    .env(env::SECRET, invitation.secret.reveal())
                    .env(env::TOKEN, &invitation.token)
                    .stdin(Stdio::null())
                    // The report has standard output to itself.
                    .stdout(io::stderr())
                    .kill_on_drop(true)
                    .spawn()?;
                Ok(RunningTarget::Child(child))
            }
            Self::Task(task) => Ok(RunningTarget::Task(tokio::spawn(task(invitation)))),
            Self::ByHand(tell) => {
                tell(&invitation);
                Ok(RunningTarget::Unseen)
            }
        }
    }
}

/// A worker that was started. Dropping it kills it, if it can be killed.
pub(super) enum RunningTarget {
    Child(Child),
    Task(JoinHandle<Result<(), String>>),
    Unseen,
}

/// How a worker ended.
#[derive(Debug)]
pub(super) enum TargetEnd {
    Well,
    Badly(String),
    StillRunning,
    Unseen,
}

impl RunningTarget {
    /// Waits for its end, for a while.
    pub(super) async fn ended(&mut self, patience: Duration) -> TargetEnd {
        let ended = async {
            match self {
                Self::Child(child) => match child.wait().await {
                    Ok(status) if status.success() => TargetEnd::Well,
                    Ok(status) => TargetEnd::Badly(status.to_string()),
                    Err(error) => TargetEnd::Badly(error.to_string()),
                },
                Self::Task(task) => match task.await {
                    Ok(Ok(())) => TargetEnd::Well,
                    Ok(Err(error)) => TargetEnd::Badly(error),
                    Err(error) => TargetEnd::Badly(error.to_string()),
                },
                Self::Unseen => TargetEnd::Unseen,
            }
        };
        tokio::time::timeout(patience, ended).await.unwrap_or(TargetEnd::StillRunning)
    }
}

impl Drop for RunningTarget {
    fn drop(&mut self) {
        if let Self::Task(task) = self {
            task.abort();
        }
    }
}
