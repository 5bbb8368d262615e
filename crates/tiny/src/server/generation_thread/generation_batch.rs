//! Running and waiting requests of the generation thread.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use rollway_tiny_model::{Generator, ModelWeights, Sampled, StopReason};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::{Ending, GeneratedToken, GenerationCounts, GenerationJob, GenerationPause, TokenEvent};
use crate::server::options::{TinyServerLimits, TinyServerOptions};
use crate::server::seeds::Seeds;

/// Pause state.
#[derive(Debug)]
enum PauseGate {
    Open,
    /// Running requests finish, none is admitted. Senders are notified when none is left.
    Draining(Vec<oneshot::Sender<()>>),
    Frozen,
}

/// A job that is generated.
#[derive(Debug)]
struct RunningGeneration {
    ids: Vec<String>,
    events: UnboundedSender<TokenEvent>,
    /// Choices that have not ended.
    open: usize,
}

/// A choice that is generated, by its id in the generator.
#[derive(Debug)]
struct GenerationSlot {
    job: u64,
    choice: usize,
    stops: Arc<[Vec<u32>]>,
    tokens: Vec<u32>,
}

#[derive(Debug)]
pub(in crate::server) struct GenerationBatch {
    generator: Generator,
    seeds: Seeds,
    version: Arc<str>,
    gate: PauseGate,
    waiting: VecDeque<(u64, GenerationJob)>,
    running: HashMap<u64, RunningGeneration>,
    slots: HashMap<u64, GenerationSlot>,
    next_slot: u64,
    limits: TinyServerLimits,
    counts: Arc<Mutex<GenerationCounts>>,
    is_ended: bool,
}

impl GenerationBatch {
    pub(super) fn new(options: &TinyServerOptions, counts: Arc<Mutex<GenerationCounts>>) -> Self {
        Self {
            generator: Generator::new(Arc::clone(&options.weights)),
            seeds: Seeds::new(options.seed, &options.weights),
            version: options.version.to_string().into(),
            gate: PauseGate::Open,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            slots: HashMap::new(),
            next_slot: 0,
            limits: options.limits,
            counts,
            is_ended: false,
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Ends the thread, and with it all running requests.
    pub(in crate::server) fn end(&mut self) {
        self.is_ended = true;
    }

    fn count(&self, change: impl FnOnce(&mut GenerationCounts)) {
        change(&mut self.counts.lock());
    }

    /// Returns whether the next step samples a token.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.gate, PauseGate::Frozen) && !self.slots.is_empty()
    }

    pub(super) fn add(&mut self, number: u64, job: GenerationJob) {
        self.count(|counts| counts.requests += 1);
        // Jobs that fit into the batch do not count as waiting.
        if self.waiting.len() >= self.limits.max_waiting {
            self.admit();
        }
        if self.waiting.len() >= self.limits.max_waiting {
            self.count(|counts| counts.refused += 1);
            let _ = job.events.send(TokenEvent::Refused);
            return;
        }
        self.waiting.push_back((number, job));
    }

    /// Admits waiting jobs in order while they fit.
    pub(super) fn admit(&mut self) {
        if !matches!(self.gate, PauseGate::Open) {
            return;
        }
        while let Some((_, job)) = self.waiting.front()
            && self.slots.len() + job.choices.len() <= self.limits.max_running
            && let Some((number, job)) = self.waiting.pop_front()
        {
            let open = job.choices.len();
            for (choice, mut wanted) in job.choices.into_iter().enumerate() {
                if !wanted.is_seeded {
                    wanted.request.seed = self.seeds.next(&wanted.request.prompt);
                }
                let id = self.next_slot;
                self.next_slot += 1;
                self.generator.add(id, wanted.request);
                let slot =
                    GenerationSlot { job: number, choice, stops: wanted.stops, tokens: Vec::new() };
                self.slots.insert(id, slot);
            }
            self.running
                .insert(number, RunningGeneration { ids: job.ids, events: job.events, open });
        }
    }

    /// Samples one token for every running choice.
    pub(super) fn step(&mut self) {
        if !self.is_busy() {
            return;
        }
        let sampled = self.generator.step();
        // Counted before it is sent: a client that has its response sees it in the counters.
        self.count(|counts| {
            counts.steps += 1;
            counts.tokens += sampled.len() as u64;
        });
        for sampled in sampled {
            self.deliver(sampled);
        }
        self.finish_draining();
    }

    /// Sends a token to its job.
    fn deliver(&mut self, Sampled { id, token, logprob, stop }: Sampled) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.tokens.push(token);
        let found = slot.stops.iter().position(|stop| slot.tokens.ends_with(stop));
        let end = match stop {
            Some(StopReason::End) => Some(Ending::End),
            _ if found.is_some() => found.map(Ending::Stop),
            Some(StopReason::Length) => Some(Ending::Length),
            None => None,
        };
        let (number, choice) = (slot.job, slot.choice);
        let version = Arc::clone(&self.version);
        let event = TokenEvent::Token(GeneratedToken { choice, token, logprob, version, end });
        if end.is_some() {
            self.generator.remove(id);
            self.slots.remove(&id);
        }
        let Some(job) = self.running.get_mut(&number) else { return };
        job.open -= usize::from(end.is_some());
        let events = job.events.clone();
        if job.open == 0 {
            self.running.remove(&number);
            self.count(|counts| counts.answered += 1);
        }
        let _ = events.send(event);
    }

    /// Ends draining when no job is running.
    fn finish_draining(&mut self) {
        if let PauseGate::Draining(waiting) = &mut self.gate
            && self.running.is_empty()
        {
            for done in waiting.drain(..) {
                let _ = done.send(());
            }
            self.gate = PauseGate::Frozen;
        }
    }

    pub(super) fn disconnect(&mut self, number: u64) {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != number);
        if self.waiting.len() < before || self.remove(number).is_some() {
            self.count(|counts| counts.left += 1);
        }
        self.finish_draining();
    }

    fn remove(&mut self, number: u64) -> Option<RunningGeneration> {
        let job = self.running.remove(&number)?;
        let ids: Vec<u64> =
            self.slots.iter().filter(|(_, slot)| slot.job == number).map(|(id, _)| *id).collect();
        for id in ids {
            self.slots.remove(&id);
            self.generator.remove(id);
        }
        Some(job)
    }

    /// Aborts jobs by their ids; all if none is given.
    pub(in crate::server) fn abort(&mut self, ids: &[String]) {
        let matches = |own: &[String]| ids.is_empty() || own.iter().any(|id| ids.contains(id));
        let mut aborted = Vec::new();
        for (number, job) in std::mem::take(&mut self.waiting) {
            match matches(&job.ids) {
                true => aborted.push(job.events),
                false => self.waiting.push_back((number, job)),
            }
        }
        let running = self.running.iter().filter(|(_, job)| matches(&job.ids));
        let numbers: Vec<u64> = running.map(|(number, _)| *number).collect();
        let removed = numbers.into_iter().filter_map(|number| self.remove(number));
        aborted.extend(removed.map(|job| job.events));
        self.count(|counts| counts.aborted += aborted.len() as u64);
        for events in aborted {
            let _ = events.send(TokenEvent::Aborted);
        }
        self.finish_draining();
    }

    pub(in crate::server) fn pause(&mut self, mode: GenerationPause, done: oneshot::Sender<()>) {
        if mode == GenerationPause::Abort {
            self.abort(&[]);
        }
        match &mut self.gate {
            PauseGate::Draining(waiting) if mode == GenerationPause::Wait => waiting.push(done),
            PauseGate::Open if mode == GenerationPause::Wait => {
                self.gate = PauseGate::Draining(vec![done])
            }
            gate => {
                // A pause ends the wait of an earlier one for running requests.
                if let PauseGate::Draining(waiting) = std::mem::replace(gate, PauseGate::Frozen) {
                    for done in waiting {
                        let _ = done.send(());
                    }
                }
                let _ = done.send(());
            }
        }
        self.finish_draining();
    }

    pub(in crate::server) fn resume(&mut self) {
        // A pause that still waits is dropped.
        self.gate = PauseGate::Open;
    }

    pub(in crate::server) fn clear_cache(&mut self) {
        self.generator.clear_cache();
    }

    pub(in crate::server) fn replace_weights(&mut self, weights: Arc<ModelWeights>) {
        self.seeds.replace(&weights);
        self.generator.replace(weights);
        self.count(|counts| counts.updates += 1);
    }

    pub(in crate::server) fn set_version(&mut self, version: Arc<str>) {
        self.version = version;
    }
}
