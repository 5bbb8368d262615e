//! The thread that thinks: it continues all requests that are under way together, one token each at
//! a time, and sleeps when there is nothing to do. Everything that may change between two tokens,
//! the weights among it, changes here and nowhere else.

mod generation_batch;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rollway_tiny_model::{GenerateRequest, ModelWeights};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use self::generation_batch::GenerationBatch;
use super::options::TinyServerOptions;

/// A request for an answer.
#[derive(Debug)]
pub(super) struct GenerationJob {
    /// What it can be aborted by.
    pub(super) names: Vec<String>,
    pub(super) choices: Vec<TinyChoice>,
    /// Where tokens go. There are never more in it than the choices may have.
    pub(super) to: UnboundedSender<TokenEvent>,
}

/// One of the choices of an answer.
#[derive(Debug)]
pub(super) struct TinyChoice {
    /// What to continue. Its seed counts only if `is_seeded`.
    pub(super) request: GenerateRequest,
    pub(super) is_seeded: bool,
    /// The sequences of tokens that end it.
    pub(super) stops: Arc<[Vec<u32>]>,
}

/// What is said to a job.
#[derive(Debug)]
pub(super) enum TokenEvent {
    /// One more token.
    Token(GeneratedToken),
    /// No more tokens for any choice that has not ended: it was aborted.
    Aborted,
    /// Too many wait already.
    Refused,
}

/// One token.
#[derive(Clone, Debug)]
pub(super) struct GeneratedToken {
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
pub(super) enum GenerationPause {
    Abort,
    Wait,
    Keep,
}

/// What went on, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationCounts {
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
enum GenerationCommand {
    Add(u64, GenerationJob),
    /// Nobody waits for it any more.
    Leave(u64),
    /// Aborts jobs by their names; all if there is none.
    Abort(Vec<String>),
    Pause(GenerationPause, oneshot::Sender<()>),
    Resume,
    Forget,
    Replace(Arc<ModelWeights>, oneshot::Sender<()>),
    Rename(Arc<str>),
    End,
}

/// What others have of the thread.
#[derive(Debug)]
pub(super) struct GenerationThread {
    commands: Sender<GenerationCommand>,
    next: AtomicU64,
    counts: Arc<Mutex<GenerationCounts>>,
    /// Held by the thread.
    alive: Weak<()>,
}

impl GenerationThread {
    /// Starts the thread.
    pub(super) fn start(options: &TinyServerOptions) -> io::Result<(Self, JoinHandle<()>)> {
        let (commands, received) = mpsc::channel();
        let counts = Arc::new(Mutex::new(GenerationCounts::default()));
        let board = GenerationBatch::new(options, Arc::clone(&counts));
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

    pub(super) fn counts(&self) -> GenerationCounts {
        *self.counts.lock()
    }

    /// Says something to the thread. One that has ended has nobody waiting for it.
    fn say(&self, command: GenerationCommand) {
        let _ = self.commands.send(command);
    }

    /// Takes a job in. Dropping what is returned gives it up, if it has not ended.
    pub(super) fn add(self: &Arc<Self>, job: GenerationJob) -> Held {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.say(GenerationCommand::Add(number, job));
        Held { brain: Arc::clone(self), number }
    }

    pub(super) fn abort(&self, names: Vec<String>) {
        self.say(GenerationCommand::Abort(names));
    }

    /// Stops giving tokens; returns when that is so. What comes waits until
    /// [`GenerationThread::resume`].
    pub(super) async fn pause(&self, how: GenerationPause) {
        let (done, waits) = oneshot::channel();
        self.say(GenerationCommand::Pause(how, done));
        let _ = waits.await;
    }

    pub(super) fn resume(&self) {
        self.say(GenerationCommand::Resume);
    }

    /// Forgets what the weights made of the past.
    pub(super) fn forget(&self) {
        self.say(GenerationCommand::Forget);
    }

    /// Replaces the weights from the next token on; returns when that is so.
    pub(super) async fn replace(&self, weights: Arc<ModelWeights>) {
        let (done, waits) = oneshot::channel();
        self.say(GenerationCommand::Replace(weights, done));
        let _ = waits.await;
    }

    /// Gives the weights another name, from the next token on.
    pub(super) fn rename(&self, version: Arc<str>) {
        self.say(GenerationCommand::Rename(version));
    }

    /// Ends the thread, and with it all that is under way.
    pub(super) fn end(&self) {
        self.say(GenerationCommand::End);
    }
}

/// A job, as whoever waits for it has it.
#[derive(Debug)]
pub(super) struct Held {
    brain: Arc<GenerationThread>,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.brain.say(GenerationCommand::Leave(self.number));
    }
}

fn think(mut board: GenerationBatch, commands: &Receiver<GenerationCommand>) {
    loop {
        if !board.is_busy() {
            match commands.recv() {
                Ok(GenerationCommand::End) | Err(_) => return,
                Ok(command) => act(&mut board, command),
            }
        }
        loop {
            match commands.try_recv() {
                Ok(GenerationCommand::End) => return,
                Ok(command) => act(&mut board, command),
                Err(_) => break,
            }
        }
        board.admit();
        board.step();
    }
}

fn act(board: &mut GenerationBatch, command: GenerationCommand) {
    match command {
        GenerationCommand::Add(number, job) => board.add(number, job),
        GenerationCommand::Leave(number) => board.leave(number),
        GenerationCommand::Abort(names) => board.abort(&names),
        GenerationCommand::Pause(how, done) => board.pause(how, done),
        GenerationCommand::Resume => board.resume(),
        GenerationCommand::Forget => board.forget(),
        GenerationCommand::Replace(weights, done) => {
            board.replace(weights);
            let _ = done.send(());
        }
        GenerationCommand::Rename(version) => board.rename(version),
        // The loop around ends with it.
        GenerationCommand::End => {}
    }
}
