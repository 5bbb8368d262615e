//! Root-mean-square normalisation of rows, forward and backward.

const EPSILON: f32 = 1e-5;

/// Writes the normalised rows of `x`, scaled by `gain`, to `y`. Returns the scale of every row.
pub(crate) fn forward(y: &mut [f32], x: &[f32], gain: &[f32]) -> Vec<f32> {
    let width = gain.len();
    let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
    rows.map(|(x, y)| {
        let mean = x.iter().map(|x| x * x).sum::<f32>() / width as f32;
        let scale = 1.0 / (mean + EPSILON).sqrt();
        for ((y, x), gain) in y.iter_mut().zip(x).zip(gain) {
            *y = x * scale * gain;
        }
        scale
    })
    .collect()
}

/// Adds the gradients of `x` and of `gain`, given that of `y`.
pub(crate) fn backward(
    (dx, dgain): (&mut [f32], &mut [f32]),
    dy: &[f32],
    (x, scales, gain): (&[f32], &[f32], &[f32]),
) {
    let width = gain.len();
    for (row, scale) in scales.iter().enumerate() {
        let at = row * width..(row + 1) * width;
        let (x, dy, dx) = (&x[at.clone()], &dy[at.clone()], &mut dx[at]);
        let along = x.iter().zip(dy).zip(gain).map(|((x, dy), gain)| x * dy * gain).sum::<f32>();
        let pull = along * scale * scale * scale / width as f32;
        for column in 0..width {
            dgain[column] += dy[column] * x[column] * scale;
            dx[column] += dy[column] * gain[column] * scale - x[column] * pull;
        }
    }
}
