//! `rollway top`: live table of a running job's runners, stuck ones first.
//!
//! ```text
//! dashboard of the job ─► client ─► TopSnapshot ─┐
//! terminal ─► key events ────────────────────────┴─► model ─► draw ─► terminal
//! ```
//!
//! [`model`] and [`draw`] use no clock, terminal or job.

pub mod client;
mod columns;
pub mod draw;
pub mod model;
pub mod terminal;

use std::io;
use std::path::Path;
use std::time::Duration;

use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_util::StreamExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use self::client::{TopClient, TopError, TopSnapshot};
use self::model::{CancelTarget, TopAction, TopModel};
use self::terminal::RawTerminal;
use crate::output::size_of;

/// Time between two snapshots.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Columns of the table when standard output is not a terminal.
const PIPE_COLUMNS: usize = 160;

/// Shows a job until the user quits; prints it once if `once` is set or there is no terminal.
///
/// # Errors
/// A message, if the job is not running or does not respond.
pub async fn top(job: &Path, once: bool) -> Result<(), String> {
    let client = TopClient::open(job)?;
    let snapshot = client.snapshot().await.map_err(|error| match error {
        TopError::Ended(end) => end.message,
        TopError::NoResponse(error) => {
            let job = job.display();
            format!("{error}; if the job has ended, open it with `rollway view {job}`")
        }
    })?;
    let mut model = TopModel::default();
    model.on_snapshot(Ok(snapshot));
    let is_live = !once && terminal::is_interactive();
    let shown = if is_live { run_live(client, model).await } else { print(&model) };
    match shown {
        // The reader of the pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        shown => shown.map_err(|error| {
            format!("cannot use the terminal: {error}; `--once` prints the table without it")
        }),
    }
}

/// Prints the whole table once.
fn print(model: &TopModel) -> io::Result<()> {
    use io::IsTerminal as _;
    let colors = terminal::has_colors();
    let is_terminal = io::stdout().is_terminal();
    let columns = if is_terminal { size_of(io::stdout()).columns } else { PIPE_COLUMNS };
    let lines = draw::full_table(model, columns);
    let text: String =
        lines.iter().map(|line| line.encode(colors).trim_end().to_owned() + "\n").collect();
    terminal::print(&text)
}

/// Message from a request task to the event loop.
enum TopMessage {
    Snapshot(Box<Result<TopSnapshot, TopError>>),
    /// Result of a cancel request.
    Notice(String),
}

async fn run_live(client: TopClient, mut model: TopModel) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (sender, mut messages) = mpsc::channel(16);
    tokio::spawn(poll(client.clone(), sender.clone()));
    let mut terminal = RawTerminal::enter()?;
    let mut events = EventStream::new();
    loop {
        terminal.draw(&mut model)?;
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind == KeyEventKind::Press => {
                    match model.on_key(key) {
                        TopAction::None => {}
                        TopAction::Quit => return Ok(()),
                        TopAction::Cancel(target) => {
                            model.notice = Some("cancelling …".to_owned());
                            tokio::spawn(cancel(client.clone(), target, sender.clone()));
                        }
                    }
                }
                // Among them a resize: the next frame has the new size.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            Some(message) = messages.recv() => match message {
                TopMessage::Snapshot(snapshot) => model.on_snapshot(*snapshot),
                TopMessage::Notice(notice) => model.notice = Some(notice),
            },
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// Sends snapshots until the receiver is closed or the job has ended.
async fn poll(client: TopClient, sender: mpsc::Sender<TopMessage>) {
    loop {
        sleep(POLL_INTERVAL).await;
        let snapshot = client.snapshot().await;
        let has_ended = matches!(snapshot, Err(TopError::Ended(_)));
        if sender.send(TopMessage::Snapshot(Box::new(snapshot))).await.is_err() || has_ended {
            return;
        }
    }
}

async fn cancel(client: TopClient, target: CancelTarget, sender: mpsc::Sender<TopMessage>) {
    let notice = match client.cancel(&target.batch, target.task, target.run).await {
        Ok(done) => done.message,
        Err(error) => format!("not cancelled: {error}"),
    };
    let _ = sender.send(TopMessage::Notice(notice)).await;
    let _ = sender.send(TopMessage::Snapshot(Box::new(client.snapshot().await))).await;
}
