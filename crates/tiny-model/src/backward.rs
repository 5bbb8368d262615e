//! Backward pass from the gradient of the logits to that of the parameters.

use crate::attention;
use crate::forward::Pass;
use crate::linear::{add_product, add_product_at, add_product_bt};
use crate::norm;
use crate::weights::ModelWeights;

/// Adds the gradient of every parameter to `gradient`, given that of the logits.
pub(crate) fn backward(
    weights: &ModelWeights,
    pass: &Pass,
    sequences: &[&[u32]],
    dlogits: &[f32],
    gradient: &mut [f32],
) {
    let (shape, layout, values) = (weights.shape(), weights.layout(), &weights.values);
    let (d, h, v) = (shape.width, shape.inner(), shape.vocabulary);
    let rows = pass.output.len() / d;
    let mut dnormed = vec![0.0; rows * d];
    add_product(&mut dnormed, dlogits, &values[layout.tokens.clone()], (rows, v, d));
    let table = &mut gradient[layout.tokens.clone()];
    add_product_at(table, dlogits, &pass.normed, (v, rows, d));
    let mut dx = vec![0.0; rows * d];
    let gain = &values[layout.norm.clone()];
    let dgain = &mut gradient[layout.norm.clone()];
    norm::backward((&mut dx, dgain), &dnormed, (&pass.output, &pass.scales, gain));

    for (block, trace) in layout.blocks.iter().zip(&pass.blocks).rev() {
        // Feed-forward layer: `down`, ReLU, `up`.
        let mut dinner = vec![0.0; rows * h];
        add_product_bt(&mut dinner, &dx, &values[block.down.clone()], (rows, d, h));
        add_product_at(&mut gradient[block.down.clone()], &trace.inner, &dx, (h, rows, d));
        for (dinner, inner) in dinner.iter_mut().zip(&trace.inner) {
            if *inner <= 0.0 {
                *dinner = 0.0;
            }
        }
        let mut dnormed = vec![0.0; rows * d];
        add_product_bt(&mut dnormed, &dinner, &values[block.up.clone()], (rows, h, d));
        add_product_at(&mut gradient[block.up.clone()], &trace.feed_normed, &dinner, (d, rows, h));
        let gain = &values[block.feed_norm.clone()];
        let dgain = &mut gradient[block.feed_norm.clone()];
        norm::backward((&mut dx, dgain), &dnormed, (&trace.middle, &trace.feed_scales, gain));

        // Attention layer: `out`, attention, `qkv`.
        let mut dattended = vec![0.0; rows * d];
        add_product_bt(&mut dattended, &dx, &values[block.out.clone()], (rows, d, d));
        add_product_at(&mut gradient[block.out.clone()], &trace.attended, &dx, (d, rows, d));
        let mut dqkv = vec![0.0; rows * 3 * d];
        for (range, weights) in pass.sequences.iter().zip(&trace.weights) {
            let wide = range.start * 3 * d..range.end * 3 * d;
            let dattended = &dattended[range.start * d..range.end * d];
            let qkv = &trace.qkv[wide.clone()];
            attention::backward(&shape, &mut dqkv[wide], dattended, qkv, weights);
        }
        let mut dnormed = vec![0.0; rows * d];
        add_product_bt(&mut dnormed, &dqkv, &values[block.qkv.clone()], (rows, 3 * d, d));
        let dweights = &mut gradient[block.qkv.clone()];
        add_product_at(dweights, &trace.attention_normed, &dqkv, (d, rows, 3 * d));
        let gain = &values[block.attention_norm.clone()];
        let dgain = &mut gradient[block.attention_norm.clone()];
        norm::backward((&mut dx, dgain), &dnormed, (&trace.input, &trace.attention_scales, gain));
    }

    let every = sequences.iter().flat_map(|sequence| sequence.iter().enumerate());
    for (row, (position, token)) in every.enumerate() {
        let dx = &dx[row * d..][..d];
        let token = layout.tokens.start + *token as usize * d;
        let position = layout.positions.start + position * d;
        for (at, dx) in dx.iter().enumerate() {
            gradient[token + at] += dx;
            gradient[position + at] += dx;
        }
    }
}
