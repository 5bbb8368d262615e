//! The generation thread: samples all running requests together, one token each at a time, and
//! sleeps while there are none. It alone owns the weights: they change only between two tokens.

mod generation_batch;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rollway_tiny_model::GenerateRequest;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

pub(super) use self::generation_batch::GenerationBatch;
use super::options::TinyServerOptions;

/// A request for completions.
#[derive(Debug)]
pub(super) struct GenerationJob {
    /// Ids by which it can be aborted.
    pub(super) ids: Vec<String>,
    pub(super) choices: Vec<TinyChoice>,
    /// Holds at most as many tokens as the choices may have.
    pub(super) events: UnboundedSender<TokenEvent>,
}

#[derive(Debug)]
pub(super) struct TinyChoice {
    /// Its seed counts only if `is_seeded`.
    pub(super) request: GenerateRequest,
    pub(super) is_seeded: bool,
    /// Token sequences that end the completion.
    pub(super) stops: Arc<[Vec<u32>]>,
}

/// Message to a waiting response.
#[derive(Debug)]
pub(super) enum TokenEvent {
    Token(GeneratedToken),
    /// No more tokens for any open choice.
    Aborted,
    /// The queue is full.
    Refused,
}

#[derive(Clone, Debug)]
pub(super) struct GeneratedToken {
    pub(super) choice: usize,
    pub(super) token: u32,
    pub(super) logprob: f32,
    /// Version of the weights that produced it.
    pub(super) version: Arc<str>,
    pub(super) end: Option<Ending>,
}

/// End of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The end token.
    End,
    Length,
    /// Index of the stop sequence.
    Stop(usize),
}

/// Treatment of running requests by a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GenerationPause {
    Abort,
    Wait,
    Keep,
}

/// Counters of requests by outcome, and of the work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationCounts {
    pub requests: u64,
    pub answered: u64,
    pub aborted: u64,
    /// Requests whose client disconnected.
    pub left: u64,
    /// Requests refused by a full queue.
    pub refused: u64,
    pub tokens: u64,
    /// Steps; each gives every running sequence one token.
    pub steps: u64,
    /// Weight updates.
    pub updates: u64,
}

type Command = Box<dyn FnOnce(&mut GenerationBatch) + Send>;

/// Handle of the thread.
#[derive(Debug)]
pub(super) struct GenerationThread {
    commands: Sender<Command>,
    next_job: AtomicU64,
    counts: Arc<Mutex<GenerationCounts>>,
}

impl GenerationThread {
    pub(super) fn start(options: &TinyServerOptions) -> io::Result<(Self, JoinHandle<()>)> {
        let (commands, received) = mpsc::channel();
        let counts = Arc::new(Mutex::new(GenerationCounts::default()));
        let batch = GenerationBatch::new(options, Arc::clone(&counts));
        let thread = thread::Builder::new().name("rollway-tiny".to_owned());
        let thread = thread.spawn(move || run(batch, &received))?;
        Ok((Self { commands, next_job: AtomicU64::new(0), counts }, thread))
    }

    /// Returns whether the thread accepts commands.
    pub(super) fn is_alive(&self) -> bool {
        self.commands.send(Box::new(|_| {})).is_ok()
    }

    pub(super) fn counts(&self) -> GenerationCounts {
        *self.counts.lock()
    }

    /// Runs a command between two tokens. It is dropped if the thread has ended.
    pub(super) fn send(&self, command: impl FnOnce(&mut GenerationBatch) + Send + 'static) {
        let _ = self.commands.send(Box::new(command));
    }

    /// Runs a command between two tokens and waits until it signals completion.
    pub(super) async fn call(
        &self,
        command: impl FnOnce(&mut GenerationBatch, oneshot::Sender<()>) + Send + 'static,
    ) {
        let (done, completed) = oneshot::channel();
        self.send(move |batch| command(batch, done));
        let _ = completed.await;
    }

    /// Adds a job. Dropping the guard cancels it, if it has not ended.
    pub(super) fn add(self: &Arc<Self>, job: GenerationJob) -> JobGuard {
        let number = self.next_job.fetch_add(1, Ordering::Relaxed);
        self.send(move |batch| batch.add(number, job));
        JobGuard { thread: Arc::clone(self), number }
    }
}

#[derive(Debug)]
pub(super) struct JobGuard {
    thread: Arc<GenerationThread>,
    number: u64,
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        let number = self.number;
        self.thread.send(move |batch| batch.disconnect(number));
    }
}

fn run(mut batch: GenerationBatch, commands: &Receiver<Command>) {
    while !batch.is_ended() {
        if !batch.is_busy() {
            let Ok(command) = commands.recv() else { return };
            command(&mut batch);
        }
        while let Ok(command) = commands.try_recv() {
            command(&mut batch);
        }
        batch.admit();
        batch.step();
    }
}
