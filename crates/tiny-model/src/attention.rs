//! Causal attention of one sequence, forward and backward.
//!
//! Rows hold query, key and value side by side: `3 width` numbers.

use std::ops::Range;

use crate::shape::ModelShape;

/// Attention of one row to the keys and values before it. Adds the result to `out`; `weights` has
/// one number per head and past row.
pub(crate) fn add_attention(
    shape: &ModelShape,
    out: &mut [f32],
    query: &[f32],
    past: (&[f32], &[f32], usize),
    weights: &mut [f32],
) {
    let (keys, values, stride) = past;
    let (heads, wide) = (shape.heads, shape.head());
    let length = weights.len() / heads;
    let scale = 1.0 / (wide as f32).sqrt();
    for head in 0..heads {
        let part = head * wide..(head + 1) * wide;
        let query = &query[part.clone()];
        let weights = &mut weights[head * length..(head + 1) * length];
        for (at, weight) in weights.iter_mut().enumerate() {
            *weight = scale * dot(query, &keys[at * stride..][part.clone()]);
        }
        softmax(weights);
        let out = &mut out[part.clone()];
        for (at, weight) in weights.iter().enumerate() {
            add_scaled(out, &values[at * stride..][part.clone()], *weight);
        }
    }
}

/// Attention of all rows of a sequence. Returns the weights: for every row and head as many as the
/// row has in its past, itself included.
pub(crate) fn forward(shape: &ModelShape, out: &mut [f32], qkv: &[f32]) -> Vec<f32> {
    let width = shape.width;
    let length = out.len() / width;
    let mut weights = vec![0.0; shape.heads * length * (length + 1) / 2];
    for row in 0..length {
        let query = &qkv[row * 3 * width..][..width];
        let past = (&qkv[width..], &qkv[2 * width..], 3 * width);
        let row_weights = &mut weights[past_of(shape, row)];
        add_attention(shape, &mut out[row * width..][..width], query, past, row_weights);
    }
    weights
}

/// Adds the gradient of `qkv`, given that of the output.
pub(crate) fn backward(
    shape: &ModelShape,
    dqkv: &mut [f32],
    dout: &[f32],
    qkv: &[f32],
    weights: &[f32],
) {
    let (width, wide) = (shape.width, shape.head());
    let length = dout.len() / width;
    let scale = 1.0 / (wide as f32).sqrt();
    let mut pulls = Vec::with_capacity(length);
    for row in 0..length {
        let row_weights = &weights[past_of(shape, row)];
        for head in 0..shape.heads {
            let weights = &row_weights[head * (row + 1)..][..row + 1];
            let query = row * 3 * width + head * wide;
            let dattended = &dout[row * width + head * wide..][..wide];
            pulls.clear();
            for (at, weight) in weights.iter().enumerate() {
                let value = at * 3 * width + 2 * width + head * wide;
                pulls.push(dot(dattended, &qkv[value..][..wide]));
                add_scaled(&mut dqkv[value..][..wide], dattended, *weight);
            }
            let mean = dot(&pulls, weights);
            for (at, (weight, pull)) in weights.iter().zip(&pulls).enumerate() {
                let dscore = scale * weight * (pull - mean);
                let key = at * 3 * width + width + head * wide;
                for part in 0..wide {
                    dqkv[query + part] += dscore * qkv[key + part];
                    dqkv[key + part] += dscore * qkv[query + part];
                }
            }
        }
    }
}

/// Range of the weights of a row.
fn past_of(shape: &ModelShape, row: usize) -> Range<usize> {
    shape.heads * row * (row + 1) / 2..shape.heads * (row + 1) * (row + 2) / 2
}

pub(crate) fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - max).exp();
        sum += *value;
    }
    for value in row {
        *value /= sum;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add_scaled(to: &mut [f32], from: &[f32], scale: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += scale * from;
    }
}
