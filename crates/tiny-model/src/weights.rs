//! The parameters of a model.

use crate::chance::SeededRng;
use crate::shape::{ModelLayout, ModelShape};

/// Parameters of a model in one slice.
#[derive(Clone, Debug)]
pub struct ModelWeights {
    shape: ModelShape,
    layout: ModelLayout,
    pub(crate) values: Vec<f32>,
}

impl ModelWeights {
    /// Initializes parameters at random.
    ///
    /// # Panics
    ///
    /// If the shape is invalid.
    pub fn random(shape: ModelShape, seed: u64) -> Self {
        assert!(shape.problem().is_none(), "{}", shape.problem().unwrap_or_default());
        let layout = shape.layout();
        let mut chance = SeededRng::new(seed);
        let mut values = vec![0.0; layout.norm.end];
        for tensor in &layout.tensors {
            let part = &mut values[tensor.range.clone()];
            match *tensor.dims.as_slice() {
                [_] => part.fill(1.0),
                [rows, columns] => {
                    let table = tensor.name == "tokens" || tensor.name == "positions";
                    let spread = if table { 1.0 / columns as f32 } else { 1.0 / rows as f32 };
                    part.fill_with(|| spread.sqrt() * chance.normal());
                }
                _ => {}
            }
        }
        Self { shape, layout, values }
    }

    pub(crate) fn from_values(shape: ModelShape, values: Vec<f32>) -> Self {
        Self { shape, layout: shape.layout(), values }
    }

    pub fn shape(&self) -> ModelShape {
        self.shape
    }

    pub(crate) fn layout(&self) -> &ModelLayout {
        &self.layout
    }

    /// Returns dimensions and values of a tensor.
    pub fn tensor(&self, name: &str) -> Option<(&[usize], &[f32])> {
        let tensor = self.layout.tensors.iter().find(|tensor| tensor.name == name)?;
        Some((&tensor.dims, &self.values[tensor.range.clone()]))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layout.tensors.iter().map(|tensor| tensor.name.as_str())
    }
}
