//! Parameters in safetensors files with the shape as metadata, replaced atomically.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::adam::Adam;
use crate::shape::ModelShape;
use crate::train::ModelTrainer;
use crate::weights::ModelWeights;

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: {problem}", path.display())]
    Content { path: PathBuf, problem: String },
}

/// Key of the metadata. One entry, because the order of entries is random and the same parameters
/// must give the same bytes.
const ABOUT: &str = "rollway-tiny";

/// Names of the sizes in that entry.
const SHAPE: [&str; 5] = ["vocabulary", "width", "layers", "heads", "context"];

impl ModelWeights {
    pub fn load(path: &Path) -> Result<Self, WeightsError> {
        load(path, Self::from_bytes)
    }

    /// Parses the content of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let shape = shape_of(bytes)?;
        read_like(shape, &file, "").map(|values| Self::from_values(shape, values))
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self.shape(), &[("", self)], None)
    }

    /// Replaces the file atomically: a concurrent reader sees the old or the new content.
    pub fn save(&self, path: &Path) -> Result<(), WeightsError> {
        write_atomic(path, &self.to_bytes())
    }
}

impl ModelTrainer {
    /// Reads weights and optimizer state.
    pub fn load(path: &Path) -> Result<Self, WeightsError> {
        load(path, Self::from_bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let shape = shape_of(bytes)?;
        let read = |prefix| read_like(shape, &file, prefix);
        let steps = *parse_metadata(bytes)?
            .get("steps")
            .ok_or("the metadata has no `steps`: these are weights without a trainer state")?;
        let adam = Adam { means: read("means.")?, squares: read("squares.")?, steps };
        Ok(Self::resumed(ModelWeights::from_values(shape, read("")?), adam))
    }

    /// Writes weights and optimizer state.
    pub fn save(&self, path: &Path) -> Result<(), WeightsError> {
        let shape = self.weights().shape();
        let adam = self.adam();
        let means = ModelWeights::from_values(shape, adam.means.clone());
        let squares = ModelWeights::from_values(shape, adam.squares.clone());
        let parts = [("", self.weights()), ("means.", &means), ("squares.", &squares)];
        write_atomic(path, &to_bytes(shape, &parts, Some(adam.steps)))
    }
}

fn to_bytes(shape: ModelShape, parts: &[(&str, &ModelWeights)], steps: Option<u64>) -> Vec<u8> {
    let ModelShape { vocabulary, width, layers, heads, context } = shape;
    let sizes = [vocabulary, width, layers, heads, context];
    let mut entries: Vec<String> =
        SHAPE.into_iter().zip(sizes).map(|(name, size)| format!("{name}={size}")).collect();
    entries.extend(steps.map(|steps| format!("steps={steps}")));
    let about = HashMap::from([(ABOUT.to_owned(), entries.join(" "))]);
    let mut tensors = Vec::new();
    for (prefix, weights) in parts {
        for tensor in &weights.layout().tensors {
            let values = &weights.values[tensor.range.clone()];
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensors.push((format!("{prefix}{}", tensor.name), tensor.dims.clone(), bytes));
        }
    }
    let views = tensors.iter().map(|(name, dims, bytes)| {
        let view = TensorView::new(Dtype::F32, dims.clone(), bytes);
        (name, view.expect("as many bytes as the dimensions say"))
    });
    serialize(views, Some(about)).expect("every tensor has a name of its own")
}

/// Parses the metadata entry.
fn parse_metadata(bytes: &[u8]) -> Result<HashMap<String, u64>, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let entry = header.metadata().as_ref().and_then(|entries| entries.get(ABOUT));
    let entry = entry.ok_or_else(|| format!("the metadata has no entry {ABOUT}"))?;
    let parse = |text: &str| {
        let (name, number) = text.split_once('=')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    let invalid = |text| format!("invalid metadata `{text}`, expected NAME=NUMBER");
    entry.split(' ').map(|text| parse(text).ok_or_else(|| invalid(text))).collect()
}

fn shape_of(bytes: &[u8]) -> Result<ModelShape, String> {
    let about = parse_metadata(bytes)?;
    let mut sizes = [0; SHAPE.len()];
    for (name, size) in SHAPE.into_iter().zip(&mut sizes) {
        let number = about.get(name).ok_or_else(|| format!("the metadata has no {name}"))?;
        *size = *number as usize;
    }
    let [vocabulary, width, layers, heads, context] = sizes;
    let shape = ModelShape { vocabulary, width, layers, heads, context };
    if sizes.iter().any(|size| *size > 1 << 20) {
        return Err(format!("the model is too large: {shape:?}"));
    }
    match shape.problem() {
        Some(problem) => Err(problem.to_owned()),
        None => Ok(shape),
    }
}

/// Reads the tensors of a shape.
fn read_like(shape: ModelShape, file: &SafeTensors<'_>, prefix: &str) -> Result<Vec<f32>, String> {
    let layout = shape.layout();
    let mut values = vec![0.0; layout.norm.end];
    for tensor in &layout.tensors {
        let name = format!("{prefix}{}", tensor.name);
        let view = file.tensor(&name).map_err(|_| format!("missing tensor {name}"))?;
        if view.dtype() != Dtype::F32 || view.shape() != tensor.dims {
            let (dtype, dims) = (view.dtype(), view.shape());
            return Err(format!("{name} is {dtype:?} {dims:?}, not F32 {:?}", tensor.dims));
        }
        let numbers = view.data().chunks_exact(4);
        for (value, bytes) in values[tensor.range.clone()].iter_mut().zip(numbers) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(format!("parameter {at} is not finite")),
        None => Ok(values),
    }
}

fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), WeightsError> {
    let temporary = path.with_extension("tmp");
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&temporary, path)).map_err(|source| io_error(path, source))
}

fn io_error(path: &Path, source: io::Error) -> WeightsError {
    WeightsError::Io { path: path.into(), source }
}

fn load<T>(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Result<T, WeightsError> {
    let bytes = fs::read(path).map_err(|source| io_error(path, source))?;
    parse(&bytes).map_err(|problem| WeightsError::Content { path: path.into(), problem })
}
