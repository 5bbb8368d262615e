//! What is under way in the thread that thinks, and what waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use rollway_tiny_model::{Generator, ModelWeights, Sampled, StopReason};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::{Ending, GeneratedToken, GenerationCounts, GenerationJob, GenerationPause, TokenEvent};
use crate::server::options::{TinyServerLimits, TinyServerOptions};
use crate::server::seeds::Seeds;

/// Whether tokens are given.
#[derive(Debug)]
enum PauseGate {
    Open,
    /// What is under way is finished, and nothing is begun. These wait for that.
    Draining(Vec<oneshot::Sender<()>>),
    Frozen,
}

/// A job that gets tokens.
#[derive(Debug)]
struct RunningGeneration {
    names: Vec<String>,
    to: UnboundedSender<TokenEvent>,
    /// How many of its choices have not ended.
    open: usize,
}

/// A choice that gets tokens, by the id that the generator has for it.
#[derive(Debug)]
struct GenerationSlot {
    job: u64,
    choice: usize,
    stops: Arc<[Vec<u32>]>,
    said: Vec<u32>,
}

/// All of it.
#[derive(Debug)]
pub(super) struct GenerationBatch {
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
        }
    }

    fn count(&self, change: impl FnOnce(&mut GenerationCounts)) {
        change(&mut self.counts.lock());
    }

    /// Whether the next step gives anybody a token.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.gate, PauseGate::Frozen) && !self.slots.is_empty()
    }

    pub(super) fn add(&mut self, number: u64, job: GenerationJob) {
        self.count(|counts| counts.requests += 1);
        // Those that will be admitted at once do not wait.
        if self.waiting.len() >= self.limits.max_waiting {
            self.admit();
        }
        if self.waiting.len() >= self.limits.max_waiting {
            self.count(|counts| counts.refused += 1);
            let _ = job.to.send(TokenEvent::Refused);
            return;
        }
        self.waiting.push_back((number, job));
    }

    /// Begins with those who wait, in order, while there is room.
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
                    GenerationSlot { job: number, choice, stops: wanted.stops, said: Vec::new() };
                self.slots.insert(id, slot);
            }
            self.running.insert(number, RunningGeneration { names: job.names, to: job.to, open });
        }
    }

    /// Gives every choice under way a token.
    pub(super) fn step(&mut self) {
        if !self.is_busy() {
            return;
        }
        let sampled = self.generator.step();
        // Whoever has an answer finds it counted.
        self.count(|counts| {
            counts.steps += 1;
            counts.tokens += sampled.len() as u64;
        });
        for sampled in sampled {
            self.hand_out(sampled);
        }
        self.settle();
    }

    /// Hands a token to whom it belongs.
    fn hand_out(&mut self, Sampled { id, token, logprob, stop }: Sampled) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.said.push(token);
        let found = slot.stops.iter().position(|stop| slot.said.ends_with(stop));
        let end = match stop {
            Some(StopReason::End) => Some(Ending::End),
            _ if found.is_some() => found.map(Ending::Stop),
            Some(StopReason::Length) => Some(Ending::Length),
            None => None,
        };
        let (number, choice) = (slot.job, slot.choice);
        let version = Arc::clone(&self.version);
        let said = TokenEvent::Token(GeneratedToken { choice, token, logprob, version, end });
        if end.is_some() {
            self.generator.remove(id);
            self.slots.remove(&id);
        }
        let Some(job) = self.running.get_mut(&number) else { return };
        job.open -= usize::from(end.is_some());
        let to = job.to.clone();
        if job.open == 0 {
            self.running.remove(&number);
            self.count(|counts| counts.answered += 1);
        }
        let _ = to.send(said);
    }

    /// Tells those who wait for it that nothing is under way.
    fn settle(&mut self) {
        if let PauseGate::Draining(waiting) = &mut self.gate
            && self.running.is_empty()
        {
            for done in waiting.drain(..) {
                let _ = done.send(());
            }
            self.gate = PauseGate::Frozen;
        }
    }

    pub(super) fn leave(&mut self, number: u64) {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != number);
        if self.waiting.len() < before || self.remove(number).is_some() {
            self.count(|counts| counts.left += 1);
        }
        self.settle();
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

    /// Aborts jobs by their names; all if none is given.
    pub(super) fn abort(&mut self, names: &[String]) {
        let meant =
            |own: &[String]| names.is_empty() || own.iter().any(|name| names.contains(name));
        let mut aborted = Vec::new();
        for (number, job) in std::mem::take(&mut self.waiting) {
            match meant(&job.names) {
                true => aborted.push(job.to),
                false => self.waiting.push_back((number, job)),
            }
        }
        let running = self.running.iter().filter(|(_, job)| meant(&job.names));
        let numbers: Vec<u64> = running.map(|(number, _)| *number).collect();
        let removed = numbers.into_iter().filter_map(|number| self.remove(number));
        aborted.extend(removed.map(|job| job.to));
        self.count(|counts| counts.aborted += aborted.len() as u64);
        for to in aborted {
            let _ = to.send(TokenEvent::Aborted);
        }
        self.settle();
    }

    pub(super) fn pause(&mut self, how: GenerationPause, done: oneshot::Sender<()>) {
        if how == GenerationPause::Abort {
            self.abort(&[]);
        }
        match &mut self.gate {
            PauseGate::Draining(waiting) if how == GenerationPause::Wait => waiting.push(done),
            PauseGate::Open if how == GenerationPause::Wait => {
                self.gate = PauseGate::Draining(vec![done])
            }
            gate => {
                // Whoever waits for an end of what is under way has a halt instead.
                if let PauseGate::Draining(waiting) = std::mem::replace(gate, PauseGate::Frozen) {
                    for done in waiting {
                        let _ = done.send(());
                    }
                }
                let _ = done.send(());
            }
        }
        self.settle();
    }

    pub(super) fn resume(&mut self) {
        // Whoever waits for a halt does not get one.
        self.gate = PauseGate::Open;
    }

    pub(super) fn forget(&mut self) {
        self.generator.forget();
    }

    pub(super) fn replace(&mut self, weights: Arc<ModelWeights>) {
        self.seeds.replace(&weights);
        self.generator.replace(weights);
        self.count(|counts| counts.updates += 1);
    }

    pub(super) fn rename(&mut self, version: Arc<str>) {
        self.version = version;
    }
}
