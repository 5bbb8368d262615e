//! The thread that thinks: it continues all requests that are under way together, one token each at
//! a time, and sleeps when there is nothing to do. Everything that may change between two tokens,
//! the weights among it, changes here and nowhere else.

mod board;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rollway_tiny_model::{Request, Weights};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use self::board::Board;
use super::options::Options;

/// A request for an answer.
#[derive(Debug)]
pub(super) struct Job {
    /// What it can be aborted by.
    pub(super) names: Vec<String>,
    pub(super) choices: Vec<Choice>,
    /// Where tokens go. There are never more in it than the choices may have.
    pub(super) to: UnboundedSender<Said>,
}

/// One of the choices of an answer.
#[derive(Debug)]
pub(super) struct Choice {
    /// What to continue. Its seed counts only if `is_seeded`.
    pub(super) request: Request,
    pub(super) is_seeded: bool,
    /// The sequences of tokens that end it.
    pub(super) stops: Arc<[Vec<u32>]>,
}

/// What is said to a job.
#[derive(Debug)]
pub(super) enum Said {
    /// One more token.
    Token(Token),
    /// No more tokens for any choice that has not ended: it was aborted.
    Aborted,
    /// Too many wait already.
    Refused,
}

/// One token.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) choice: usize,
    pub(super) token: u32,
    pub(super) logprob: f32,
    /// The version of the weights that it is from.
    pub(super) version: Arc<str>,
    pub(super) end: Option<Ending>,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The model said so.
    End,
    /// There was no room for more.
    Length,
    /// One of the sequences that end it, by number.
    Stop(usize),
}

/// How a pause treats what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    Abort,
    Wait,
    Keep,
}

/// What went on, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that came.
    pub requests: u64,
    /// Requests that were answered to the end.
    pub answered: u64,
    /// Requests that were aborted by word.
    pub aborted: u64,
    /// Requests whose client left.
    pub left: u64,
    /// Requests that were refused because too many waited.
    pub refused: u64,
    /// Tokens that were said.
    pub tokens: u64,
    /// Steps, in each of which every sequence under way got a token.
    pub steps: u64,
    /// Updates of the weights.
    pub updates: u64,
}

#[derive(Debug)]
enum Command {
    Add(u64, Job),
    /// Nobody waits for it any more.
    Leave(u64),
    /// Aborts jobs by their names; all if there is none.
    Abort(Vec<String>),
    Pause(Pause, oneshot::Sender<()>),
    Resume,
    Forget,
    Replace(Arc<Weights>, oneshot::Sender<()>),
    Rename(Arc<str>),
    End,
}

/// What others have of the thread.
#[derive(Debug)]
pub(super) struct Brain {
    commands: Sender<Command>,
    next: AtomicU64,
    counts: Arc<Mutex<Counts>>,
    /// Held by the thread.
    alive: Weak<()>,
}

impl Brain {
    /// Starts the thread.
    pub(super) fn start(options: &Options) -> io::Result<(Self, JoinHandle<()>)> {
        let (commands, received) = mpsc::channel();
        let counts = Arc::new(Mutex::new(Counts::default()));
        let board = Board::new(options, Arc::clone(&counts));
        let life = Arc::new(());
        let alive = Arc::downgrade(&life);
        let thread = thread::Builder::new().name("rollway-tiny".to_owned()).spawn(move || {
            let _life = life;
            think(board, &received);
        })?;
        Ok((Self { commands, next: AtomicU64::new(0), counts, alive }, thread))
    }

    /// Whether the thread is running.
    pub(super) fn is_alive(&self) -> bool {
        self.alive.strong_count() > 0
    }

    pub(super) fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// Says something to the thread. One that has ended has nobody waiting for it.
    fn say(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Takes a job in. Dropping what is returned gives it up, if it has not ended.
    pub(super) fn add(self: &Arc<Self>, job: Job) -> Held {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.say(Command::Add(number, job));
        Held { brain: Arc::clone(self), number }
    }

    pub(super) fn abort(&self, names: Vec<String>) {
        self.say(Command::Abort(names));
    }

    /// Stops giving tokens; returns when that is so. What comes waits until [`Brain::resume`].
    pub(super) async fn pause(&self, how: Pause) {
        let (done, waits) = oneshot::channel();
        self.say(Command::Pause(how, done));
        let _ = waits.await;
    }

    pub(super) fn resume(&self) {
        self.say(Command::Resume);
    }

    /// Forgets what the weights made of the past.
    pub(super) fn forget(&self) {
        self.say(Command::Forget);
    }

    /// Replaces the weights from the next token on; returns when that is so.
    pub(super) async fn replace(&self, weights: Arc<Weights>) {
        let (done, waits) = oneshot::channel();
        self.say(Command::Replace(weights, done));
        let _ = waits.await;
    }

    /// Gives the weights another name, from the next token on.
    pub(super) fn rename(&self, version: Arc<str>) {
        self.say(Command::Rename(version));
    }

    /// Ends the thread, and with it all that is under way.
    pub(super) fn end(&self) {
        self.say(Command::End);
    }
}

/// A job, as whoever waits for it has it.
#[derive(Debug)]
pub(super) struct Held {
    brain: Arc<Brain>,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.brain.say(Command::Leave(self.number));
    }
}

fn think(mut board: Board, commands: &Receiver<Command>) {
    loop {
        if !board.is_busy() {
            match commands.recv() {
                Ok(Command::End) | Err(_) => return,
                Ok(command) => act(&mut board, command),
            }
        }
        loop {
            match commands.try_recv() {
                Ok(Command::End) => return,
                Ok(command) => act(&mut board, command),
                Err(_) => break,
            }
        }
        board.admit();
        board.step();
    }
}

fn act(board: &mut Board, command: Command) {
    match command {
        Command::Add(number, job) => board.add(number, job),
        Command::Leave(number) => board.leave(number),
        Command::Abort(names) => board.abort(&names),
        Command::Pause(how, done) => board.pause(how, done),
        Command::Resume => board.resume(),
        Command::Forget => board.forget(),
        Command::Replace(weights, done) => {
            board.replace(weights);
            let _ = done.send(());
        }
        Command::Rename(version) => board.rename(version),
        // The loop around ends with it.
        Command::End => {}
    }
}
