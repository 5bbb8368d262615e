//! Batched sampling: every step gives each sequence one token; sequences join and leave between
//! steps. Keys and values are cached.

use std::sync::Arc;

use crate::attention::{add_attention, softmax};
use crate::chance::SeededRng;
use crate::forward::{embed, relu};
use crate::linear::{add_product, add_product_bt};
use crate::norm;
use crate::weights::ModelWeights;

#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// At least one token, and fewer than the context.
    pub prompt: Vec<u32>,
    /// At least 1.
    pub max_tokens: usize,
    /// 0 is greedy.
    pub temperature: f32,
    pub seed: u64,
    /// Token that ends the sequence.
    pub end: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model sampled the end token.
    End,
    /// `max_tokens` or the context is reached.
    Length,
}

/// One sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    pub id: u64,
    pub token: u32,
    /// Log-probability in the distribution it was sampled from.
    pub logprob: f32,
    /// `Some`: it is the last token.
    pub stop: Option<StopReason>,
}

/// Completion of one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// Includes the end token.
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub stop: Option<StopReason>,
}

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
    /// Prompt and completion.
    tokens: Vec<u32>,
    /// Number of tokens in the cache.
    cached: usize,
    /// Keys and values per block, side by side.
    past: Vec<Vec<f32>>,
}

impl CacheSlot {
    fn generated_count(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    fn uncached(&self) -> &[u32] {
        &self.tokens[self.cached..]
    }
}

impl Generator {
    pub fn new(weights: Arc<ModelWeights>) -> Self {
        Self { weights, slots: Vec::new() }
    }

    /// Weights of the next step.
    pub fn weights(&self) -> &Arc<ModelWeights> {
        &self.weights
    }

    /// Replaces the weights from the next step on. Running sequences keep their cache.
    ///
    /// # Panics
    ///
    /// If the shape differs.
    pub fn replace(&mut self, weights: Arc<ModelWeights>) {
        assert_eq!(weights.shape(), self.weights.shape(), "a model keeps its shape");
        self.weights = weights;
    }

    /// Clears the cache. The next step rebuilds it with the current weights.
    pub fn clear_cache(&mut self) {
        for slot in &mut self.slots {
            slot.cached = 0;
            slot.past.iter_mut().for_each(Vec::clear);
        }
    }

    /// Returns what is wrong with a request.
    pub fn refusal(&self, request: &GenerateRequest) -> Option<String> {
        let shape = self.weights.shape();
        let length = request.prompt.len();
        if length == 0 {
            return Some("the prompt is empty".into());
        }
        if length >= shape.context {
            let room = shape.context - 1;
            return Some(format!("the prompt has {length} tokens, at most {room} are allowed"));
        }
        if request.max_tokens == 0 {
            return Some("max_tokens must be at least 1".into());
        }
        if !(request.temperature >= 0.0 && request.temperature.is_finite()) {
            return Some(format!("temperature must be 0 or more, got {}", request.temperature));
        }
        let known = shape.vocabulary;
        let unknown = request.prompt.iter().find(|token| **token as usize >= known);
        unknown.map(|token| format!("no token {token}: the vocabulary has {known} tokens"))
    }

    /// Adds a request; its tokens carry `id`.
    ///
    /// # Panics
    ///
    /// If [`refusal`](Self::refusal) objects.
    pub fn add(&mut self, id: u64, request: GenerateRequest) {
        let refusal = self.refusal(&request);
        assert!(refusal.is_none(), "{}", refusal.unwrap_or_default());
        let blocks = self.weights.shape().layers;
        self.slots.push(CacheSlot {
            id,
            chance: SeededRng::new(request.seed),
            tokens: request.prompt.clone(),
            request,
            cached: 0,
            past: vec![Vec::new(); blocks],
        });
    }

    /// Removes a request. Returns whether it was there.
    pub fn remove(&mut self, id: u64) -> bool {
        let before = self.slots.len();
        self.slots.retain(|slot| slot.id != id);
        self.slots.len() < before
    }

    /// Samples one token for every sequence.
    pub fn step(&mut self) -> Vec<Sampled> {
        let shape = self.weights.shape();
        let mut logits = self.forward();
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

    /// Completes all prompts.
    ///
    /// # Panics
    ///
    /// If a request is refused, or other sequences are running.
    pub fn complete(&mut self, requests: Vec<GenerateRequest>) -> Vec<Generated> {
        assert!(self.slots.is_empty(), "other sequences are running");
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

    /// Runs the model on the uncached tokens. Returns the logits of the next tokens.
    fn forward(&mut self) -> Vec<f32> {
        let Self { weights, slots } = self;
        let (shape, layout, values) = (weights.shape(), weights.layout(), &weights.values);
        let (d, h) = (shape.width, shape.inner());
        let mut x = Vec::new();
        let mut ends = Vec::with_capacity(slots.len());
        for slot in slots.iter() {
            for (position, token) in (slot.cached..).zip(slot.uncached()) {
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
            let mut attended = vec![0.0; rows * d];
            let mut row = 0;
            for slot in slots.iter_mut() {
                let uncached = slot.uncached().len();
                let past = &mut slot.past[at];
                for _ in 0..uncached {
                    past.extend_from_slice(&qkv[row * 3 * d + d..(row + 1) * 3 * d]);
                    attention.clear();
                    attention.resize(shape.heads * past.len() / (2 * d), 0.0);
                    let query = &qkv[row * 3 * d..][..d];
                    let out = &mut attended[row * d..][..d];
                    add_attention(
                        &shape,
                        out,
                        query,
                        (&past[..], &past[d..], 2 * d),
                        &mut attention,
                    );
                    row += 1;
                }
            }
            add_product(&mut x, &attended, &values[block.out.clone()], (rows, d, d));
            norm::forward(&mut normed, &x, &values[block.feed_norm.clone()]);
            let mut inner = vec![0.0; rows * h];
            add_product(&mut inner, &normed, &values[block.up.clone()], (rows, d, h));
            relu(&mut inner);
            add_product(&mut x, &inner, &values[block.down.clone()], (rows, h, d));
        }
        // Only the last row of each sequence predicts the next token.
        let last: Vec<f32> =
            ends.iter().flat_map(|end| &x[(end - 1) * d..end * d]).copied().collect();
        normed.truncate(last.len());
        norm::forward(&mut normed, &last, &values[layout.norm.clone()]);
        let mut logits = vec![0.0; slots.len() * shape.vocabulary];
        let table = &values[layout.tokens.clone()];
        add_product_bt(&mut logits, &normed, table, (slots.len(), d, shape.vocabulary));
        for slot in slots {
            slot.cached = slot.tokens.len();
        }
        logits
    }
}

/// Samples a token. Returns it and its log-probability.
fn draw(scores: &mut [f32], temperature: f32, chance: &mut SeededRng) -> (u32, f32) {
    let greedy = || {
        let mut best = 0;
        for (token, score) in scores.iter().enumerate() {
            if *score > scores[best] {
                best = token;
            }
        }
        best
    };
    let fixed = (temperature == 0.0).then(greedy);
    if temperature > 0.0 {
        for score in scores.iter_mut() {
            *score /= temperature;
        }
    }
    softmax(scores);
    let token = fixed.unwrap_or_else(|| {
        let mut left = chance.unit();
        let mut token = 0;
        for (at, score) in scores.iter().enumerate().filter(|(_, score)| **score > 0.0) {
            token = at;
            left -= score;
            if left < 0.0 {
                break;
            }
        }
        token
    });
    (token as u32, scores[token].ln())
}
