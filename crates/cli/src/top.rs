//! `rollway top`: the runners of a running job on a terminal, those that are stuck first.
//!
//! ```text
//! dashboard of the job ─► ask ─► TopSnapshot ─┐
//! terminal ─► screen ─► keys ──────────┴─► board ─► draw ─► screen
//! ```
//!
//! [`board`] knows what is shown and what keys do, and [`draw`] turns it into lines, both without a
//! clock, a terminal or a job.

pub mod client;
pub mod draw;
pub mod keys;
pub mod model;
pub mod terminal;

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use self::client::{TopClient, TopSnapshot};
use self::model::{TopAction, TopModel};
use self::terminal::RawTerminal;
use crate::output::size_of;

/// How often the job is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// The width of what is printed to something that is no terminal.
const WIDTH: usize = 160;

/// Shows a job until somebody has seen enough; or once, if that is wanted or there is no terminal.
///
/// # Errors
/// In words, if there is no such job, or it does not answer.
pub async fn top(job: &Path, once: bool) -> Result<(), String> {
    let asker = TopClient::find(job)?;
    let news = asker.news().await.map_err(|words| {
        let job = job.display();
        format!("{words}; if the job is over, look at it with `rollway view {job}`")
    })?;
    let mut board = TopModel::default();
    board.hear(Ok(news));
    let shown =
        if once || !terminal::is_there() { print(&board) } else { live(asker, board).await };
    match shown {
        // Whoever was to read it has gone.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        shown => shown.map_err(|error| format!("the terminal does not work: {error}")),
    }
}

/// Prints everything once.
fn print(board: &TopModel) -> io::Result<()> {
    use io::IsTerminal as _;
    let colors = terminal::colors();
    let is_terminal = io::stdout().is_terminal();
    let columns = if is_terminal { size_of(io::stdout()).columns } else { WIDTH };
    let lines = draw::once(board, columns);
    let text: String =
        lines.iter().map(|line| line.encode(colors).trim_end().to_owned() + "\n").collect();
    terminal::write(&text)
}

/// What comes in while the view is up.
enum Heard {
    TopSnapshot(Box<Result<TopSnapshot, String>>),
    /// What became of a cancel.
    Done(String),
}

async fn live(asker: TopClient, mut board: TopModel) -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut resized = signal(SignalKind::window_change())?;
    let (sender, mut heard) = mpsc::channel(16);
    tokio::spawn(follow(asker.clone(), sender.clone()));
    let screen = RawTerminal::take()?;
    let mut keys = terminal::keys();
    loop {
        screen.show(&draw::draw(&mut board, screen.size()))?;
        tokio::select! {
            Some(pressed) = keys.recv() => {
                for key in pressed {
                    match board.press(key) {
                        TopAction::None => {}
                        TopAction::Quit => return Ok(()),
                        TopAction::Cancel(target) => {
                            board.note = Some("cancelling …".to_owned());
                            tokio::spawn(cancel(asker.clone(), target, sender.clone()));
                        }
                    }
                }
            }
            Some(heard) = heard.recv() => match heard {
                Heard::TopSnapshot(news) => board.hear(*news),
                Heard::Done(words) => board.note = Some(words),
            },
            _ = resized.recv() => {}
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// Asks again and again; whoever does not listen any more ends it.
async fn follow(asker: TopClient, to: mpsc::Sender<Heard>) {
    loop {
        sleep(INTERVAL).await;
        if to.send(Heard::TopSnapshot(Box::new(asker.news().await))).await.is_err() {
            return;
        }
    }
}

async fn cancel(asker: TopClient, target: model::CancelTarget, to: mpsc::Sender<Heard>) {
    let done = asker.cancel(&target.batch, target.task, target.run).await;
    let words = match done {
        Ok(done) => done.message,
        Err(words) => format!("not cancelled: {words}"),
    };
    let _ = to.send(Heard::Done(words)).await;
    let _ = to.send(Heard::TopSnapshot(Box::new(asker.news().await))).await;
}
