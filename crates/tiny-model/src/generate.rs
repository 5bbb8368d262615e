//! Continuing prompts, many at once: every step gives each sequence one more token, and sequences
//! come and go between steps. Keys and values of the past are kept.

use std::sync::Arc;

use crate::attention::{look, softmax};
use crate::chance::SeededRng;
use crate::forward::{embed, rectify};
use crate::linear::{add_product, add_product_bt};
use crate::norm;
use crate::weights::ModelWeights;

/// What to continue, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// The tokens of the prompt; at least one, and fewer than the context has room for.
    pub prompt: Vec<u32>,
    /// How many tokens to say at most; at least one.
    pub max_tokens: usize,
    /// How much chance there is: 0 takes the likeliest token.
    pub temperature: f32,
    /// Decides what chance does.
    pub seed: u64,
    /// The token that ends it.
    pub end: u32,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model said so.
    End,
    /// There was no room for more.
    Length,
}

/// One token that a step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    pub id: u64,
    pub token: u32,
    /// The logarithm of how likely it was, in the distribution that it was drawn from.
    pub logprob: f32,
    /// Set if it is the last.
    pub stop: Option<StopReason>,
}

/// All that was said to one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// The tokens, the end included.
    pub tokens: Vec<u32>,
    /// The logarithm of how likely each was.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub stop: Option<StopReason>,
}

/// Continues prompts.
#[derive(Debug)]
pub struct Generator {
    weights: Arc<ModelWeights>,
    slots: Vec<CacheSlot>,
}

#[derive(Debug)]
struct CacheSlot {
    id: u64,
    request: GenerateRequest,
    chance: SeededRng,
    /// The prompt, and what was said.
    tokens: Vec<u32>,
    /// How many of them the model has seen.
    seen: usize,
    /// For every block the keys and values of the past, side by side.
    past: Vec<Vec<f32>>,
}

impl CacheSlot {
    fn generated_count(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    fn unseen(&self) -> &[u32] {
        &self.tokens[self.seen..]
    }
}

impl Generator {
    /// Returns a generator without work.
    pub fn new(weights: Arc<ModelWeights>) -> Self {
        Self { weights, slots: Vec::new() }
    }

    /// The parameters that the next step uses.
    pub fn weights(&self) -> &Arc<ModelWeights> {
        &self.weights
    }

    /// Replaces the parameters, from the next step on. Sequences under way go on, with what the
    /// earlier ones made of their past.
    ///
    /// # Panics
    ///
    /// If the model would have another shape.
    pub fn replace(&mut self, weights: Arc<ModelWeights>) {
        assert_eq!(weights.shape(), self.weights.shape(), "a model keeps its shape");
        self.weights = weights;
    }

    /// Forgets what was made of the past. The next step makes it anew, with the parameters of then,
    /// so that what follows is what these would say and think of all that was said.
    pub fn forget(&mut self) {
        for slot in &mut self.slots {
            slot.seen = 0;
            slot.past.iter_mut().for_each(Vec::clear);
        }
    }

    /// Tells what is wrong with a request.
    pub fn refusal(&self, request: &GenerateRequest) -> Option<String> {
        let shape = self.weights.shape();
        let length = request.prompt.len();
        if length == 0 {
            return Some("the prompt is empty".into());
        }
        if length >= shape.context {
            let room = shape.context - 1;
            return Some(format!("the prompt has {length} tokens, of {room} at most"));
        }
        if request.max_tokens == 0 {
            return Some("max_tokens is at least 1".into());
        }
        if !(request.temperature >= 0.0 && request.temperature.is_finite()) {
            return Some(format!("the temperature is {}, not 0 or more", request.temperature));
        }
        let known = shape.vocabulary;
        let unknown = request.prompt.iter().find(|token| **token as usize >= known);
        unknown.map(|token| format!("there is no token {token}: there are {known}"))
    }

    /// Takes a request, whose tokens will be called by `id`.
    ///
    /// # Panics
    ///
    /// If it is to be refused.
    pub fn add(&mut self, id: u64, request: GenerateRequest) {
        let refusal = self.refusal(&request);
        assert!(refusal.is_none(), "{}", refusal.unwrap_or_default());
        let blocks = self.weights.shape().layers;
        self.slots.push(CacheSlot {
            id,
            chance: SeededRng::new(request.seed),
            tokens: request.prompt.clone(),
            request,
            seen: 0,
            past: vec![Vec::new(); blocks],
        });
    }

    /// Gives a request up. Returns whether there was one.
    pub fn remove(&mut self, id: u64) -> bool {
        let before = self.slots.len();
        self.slots.retain(|slot| slot.id != id);
        self.slots.len() < before
    }

    /// How many sequences are under way.
    pub fn under_way(&self) -> usize {
        self.slots.len()
    }

    /// Gives every sequence one more token.
    pub fn step(&mut self) -> Vec<Sampled> {
        let shape = self.weights.shape();
        let mut logits = self.think();
        let rows = logits.chunks_exact_mut(shape.vocabulary);
        let mut sampled = Vec::with_capacity(self.slots.len());
        for (slot, row) in self.slots.iter_mut().zip(rows) {
            let (token, logprob) = draw(row, slot.request.temperature, &mut slot.chance);
            slot.tokens.push(token);
            let full = slot.generated_count() >= slot.request.max_tokens
                || slot.tokens.len() >= shape.context;
            let stop = if token == slot.request.end {
                Some(StopReason::End)
            } else {
                full.then_some(StopReason::Length)
            };
            sampled.push(Sampled { id: slot.id, token, logprob, stop });
        }
        let mut stops = sampled.iter().map(|sampled| sampled.stop.is_some());
        self.slots.retain(|_| !stops.next().unwrap_or_default());
        sampled
    }

    /// Continues all of some prompts to their ends.
    ///
    /// # Panics
    ///
    /// If one is to be refused, or if something else is under way.
    pub fn complete(&mut self, requests: Vec<GenerateRequest>) -> Vec<Generated> {
        assert!(self.slots.is_empty(), "something else is under way");
        let mut all = vec![Generated::default(); requests.len()];
        for (id, request) in (0..).zip(requests) {
            self.add(id, request);
        }
        while !self.slots.is_empty() {
            for Sampled { id, token, logprob, stop } in self.step() {
                let generated = &mut all[id as usize];
                generated.tokens.push(token);
                generated.logprobs.push(logprob);
                generated.stop = stop;
            }
        }
        all
    }

    /// Shows the model what it has not seen of every sequence. Returns the scores of what comes
    /// next.
    fn think(&mut self) -> Vec<f32> {
        let Self { weights, slots } = self;
        let (shape, layout, values) = (weights.shape(), weights.layout(), &weights.values);
        let (d, h) = (shape.width, shape.inner());
        let mut x = Vec::new();
        let mut ends = Vec::with_capacity(slots.len());
        for slot in slots.iter() {
            for (position, token) in (slot.seen..).zip(slot.unseen()) {
                embed(weights, *token, position, &mut x);
            }
            ends.push(x.len() / d);
        }
        let rows = x.len() / d;
        let mut normed = vec![0.0; rows * d];
        let mut attention = Vec::new();
        for (at, block) in layout.blocks.iter().enumerate() {
            norm::forward(&mut normed, &x, &values[block.attention_norm.clone()]);
            let mut qkv = vec![0.0; rows * 3 * d];
            add_product(&mut qkv, &normed, &values[block.qkv.clone()], (rows, d, 3 * d));
            let mut seen = vec![0.0; rows * d];
            let mut row = 0;
            for slot in slots.iter_mut() {
                let unseen = slot.unseen().len();
                let past = &mut slot.past[at];
                for _ in 0..unseen {
                    past.extend_from_slice(&qkv[row * 3 * d + d..(row + 1) * 3 * d]);
                    attention.clear();
                    attention.resize(shape.heads * past.len() / (2 * d), 0.0);
                    let query = &qkv[row * 3 * d..][..d];
                    let out = &mut seen[row * d..][..d];
                    look(&shape, out, query, (&past[..], &past[d..], 2 * d), &mut attention);
                    row += 1;
                }
            }
            add_product(&mut x, &seen, &values[block.out.clone()], (rows, d, d));
            norm::forward(&mut normed, &x, &values[block.feed_norm.clone()]);
            let mut inner = vec![0.0; rows * h];
            add_product(&mut inner, &normed, &values[block.up.clone()], (rows, d, h));
            rectify(&mut inner);
            add_product(&mut x, &inner, &values[block.down.clone()], (rows, h, d));
        }
        // Only the last row of each sequence says what comes next.
        let last: Vec<f32> =
            ends.iter().flat_map(|end| &x[(end - 1) * d..end * d]).copied().collect();
        normed.truncate(last.len());
        norm::forward(&mut normed, &last, &values[layout.norm.clone()]);
        let mut logits = vec![0.0; slots.len() * shape.vocabulary];
        let table = &values[layout.tokens.clone()];
        add_product_bt(&mut logits, &normed, table, (slots.len(), d, shape.vocabulary));
        for slot in slots {
            slot.seen = slot.tokens.len();
        }
        logits
    }
}

/// Draws a token from scores. Returns it and the logarithm of how likely it was.
fn draw(scores: &mut [f32], temperature: f32, chance: &mut SeededRng) -> (u32, f32) {
    let likeliest = || {
        let mut best = 0;
        for (token, score) in scores.iter().enumerate() {
            if *score > scores[best] {
                best = token;
            }
        }
        best
    };
    let fixed = (temperature == 0.0).then(likeliest);
    if temperature > 0.0 {
        for score in scores.iter_mut() {
            *score /= temperature;
        }
    }
    softmax(scores);
    let token = fixed.unwrap_or_else(|| {
        let mut left = chance.unit();
        let mut token = 0;
        for (at, likely) in scores.iter().enumerate().filter(|(_, likely)| **likely > 0.0) {
            token = at;
            left -= likely;
            if left < 0.0 {
                break;
            }
        }
        token
    });
    (token as u32, scores[token].ln())
}
