//! Forward pass from tokens to logits, with the activations that the backward pass needs.

use std::ops::Range;

use crate::attention;
use crate::linear::{add_product, add_product_bt};
use crate::norm;
use crate::weights::ModelWeights;

/// Activations of one block.
#[derive(Debug)]
pub(crate) struct ForwardTrace {
    pub(crate) input: Vec<f32>,
    pub(crate) attention_scales: Vec<f32>,
    pub(crate) attention_normed: Vec<f32>,
    pub(crate) qkv: Vec<f32>,
    /// Attention weights of every sequence.
    pub(crate) weights: Vec<Vec<f32>>,
    pub(crate) attended: Vec<f32>,
    /// Between attention and feed-forward layer.
    pub(crate) middle: Vec<f32>,
    pub(crate) feed_scales: Vec<f32>,
    pub(crate) feed_normed: Vec<f32>,
    /// After the ReLU.
    pub(crate) inner: Vec<f32>,
}

/// Activations of a forward pass.
#[derive(Debug)]
pub(crate) struct Pass {
    /// Rows of each sequence.
    pub(crate) sequences: Vec<Range<usize>>,
    pub(crate) blocks: Vec<ForwardTrace>,
    /// Output of the last block.
    pub(crate) output: Vec<f32>,
    pub(crate) scales: Vec<f32>,
    pub(crate) normed: Vec<f32>,
    /// Scores of the next token for every row.
    pub(crate) logits: Vec<f32>,
}

/// Runs the model on sequences of valid tokens, no longer than the context.
pub(crate) fn forward(weights: &ModelWeights, sequences: &[&[u32]]) -> Pass {
    let (shape, layout) = (weights.shape(), weights.layout());
    let values = &weights.values;
    let (d, h) = (shape.width, shape.inner());
    let mut ranges = Vec::with_capacity(sequences.len());
    let mut x = Vec::new();
    for sequence in sequences {
        let begin = x.len() / d;
        for (position, token) in sequence.iter().enumerate() {
            embed(weights, *token, position, &mut x);
        }
        ranges.push(begin..x.len() / d);
    }
    let rows = x.len() / d;
    let mut blocks = Vec::with_capacity(layout.blocks.len());
    for block in &layout.blocks {
        let input = x.clone();
        let mut attention_normed = vec![0.0; rows * d];
        let gain = &values[block.attention_norm.clone()];
        let attention_scales = norm::forward(&mut attention_normed, &input, gain);
        let mut qkv = vec![0.0; rows * 3 * d];
        add_product(&mut qkv, &attention_normed, &values[block.qkv.clone()], (rows, d, 3 * d));
        let mut attended = vec![0.0; rows * d];
        let attend = |range: &Range<usize>| {
            let qkv = &qkv[range.start * 3 * d..range.end * 3 * d];
            attention::forward(&shape, &mut attended[range.start * d..range.end * d], qkv)
        };
        let weights = ranges.iter().map(attend).collect();
        add_product(&mut x, &attended, &values[block.out.clone()], (rows, d, d));
        let middle = x.clone();
        let mut feed_normed = vec![0.0; rows * d];
        let gain = &values[block.feed_norm.clone()];
        let feed_scales = norm::forward(&mut feed_normed, &middle, gain);
        let mut inner = vec![0.0; rows * h];
        add_product(&mut inner, &feed_normed, &values[block.up.clone()], (rows, d, h));
        relu(&mut inner);
        add_product(&mut x, &inner, &values[block.down.clone()], (rows, h, d));
        blocks.push(ForwardTrace {
            input,
            attention_scales,
            attention_normed,
            qkv,
            weights,
            attended,
            middle,
            feed_scales,
            feed_normed,
            inner,
        });
    }
    let mut normed = vec![0.0; rows * d];
    let scales = norm::forward(&mut normed, &x, &values[layout.norm.clone()]);
    let mut logits = vec![0.0; rows * shape.vocabulary];
    let table = &values[layout.tokens.clone()];
    add_product_bt(&mut logits, &normed, table, (rows, d, shape.vocabulary));
    Pass { sequences: ranges, blocks, output: x, scales, normed, logits }
}

/// Appends the embedding of a token at a position.
pub(crate) fn embed(weights: &ModelWeights, token: u32, position: usize, to: &mut Vec<f32>) {
    let (layout, d) = (weights.layout(), weights.shape().width);
    let token = &weights.values[layout.tokens.clone()][token as usize * d..][..d];
    let position = &weights.values[layout.positions.clone()][position * d..][..d];
    to.extend(token.iter().zip(position).map(|(token, position)| token + position));
}

pub(crate) fn relu(row: &mut [f32]) {
    for value in row {
        *value = value.max(0.0);
    }
}
