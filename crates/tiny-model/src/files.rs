//! Parameters in files: safetensors, with the shape beside them, written whole or not at all.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::adam::Adam;
use crate::shape::ModelShape;
use crate::train::ModelTrainer;
use crate::weights::ModelWeights;

/// Why parameters could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file system says no.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{}: {problem}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// Under what the file says of itself. One entry, because entries come in no order, and the same
/// parameters are to be the same bytes.
const ABOUT: &str = "rollway-tiny";

/// The numbers of a shape, by the names under which they are in that entry.
const SHAPE: [&str; 5] = ["vocabulary", "width", "layers", "heads", "context"];

impl ModelWeights {
    /// Reads parameters.
    pub fn load(path: &Path) -> Result<Self, WeightsError> {
        let bytes = fs::read(path).map_err(|source| io_error(path, source))?;
        Self::from_bytes(&bytes).map_err(|problem| content_error(path, problem))
    }

    /// Takes parameters from the content of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let shape = shape_of(bytes)?;
        read_like(shape, &file, "").map(|values| Self::from_values(shape, values))
    }

    /// Returns the content of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self.shape(), &[("", self)], None)
    }

    /// Writes parameters. Whoever reads at the same time sees the earlier file, or the whole new
    /// one.
    pub fn save(&self, path: &Path) -> Result<(), WeightsError> {
        write_whole(path, &self.to_bytes())
    }
}

impl ModelTrainer {
    /// Reads a trainer with all that it remembers, so that it goes on as if it had never stopped.
    pub fn load(path: &Path) -> Result<Self, WeightsError> {
        let bytes = fs::read(path).map_err(|source| io_error(path, source))?;
        Self::from_bytes(&bytes).map_err(|problem| content_error(path, problem))
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let shape = shape_of(bytes)?;
        let read = |prefix| read_like(shape, &file, prefix);
        let steps = about(bytes)?
            .get("steps")
            .copied()
            .ok_or("there is no number of steps: these are weights without a trainer")?;
        let adam = Adam { means: read("means.")?, squares: read("squares.")?, steps };
        Ok(Self::resumed(ModelWeights::from_values(shape, read("")?), adam))
    }

    /// Writes the trainer with all that it remembers.
    pub fn save(&self, path: &Path) -> Result<(), WeightsError> {
        let shape = self.weights().shape();
        let adam = self.adam();
        let means = ModelWeights::from_values(shape, adam.means.clone());
        let squares = ModelWeights::from_values(shape, adam.squares.clone());
        let parts = [("", self.weights()), ("means.", &means), ("squares.", &squares)];
        write_whole(path, &to_bytes(shape, &parts, Some(adam.steps)))
    }
}

fn to_bytes(shape: ModelShape, parts: &[(&str, &ModelWeights)], steps: Option<u64>) -> Vec<u8> {
    let ModelShape { vocabulary, width, layers, heads, context } = shape;
    let sizes = [vocabulary, width, layers, heads, context];
    let mut words: Vec<String> =
        SHAPE.into_iter().zip(sizes).map(|(name, size)| format!("{name}={size}")).collect();
    words.extend(steps.map(|steps| format!("steps={steps}")));
    let about = HashMap::from([(ABOUT.to_owned(), words.join(" "))]);
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

/// Returns the numbers that a file says of itself.
fn about(bytes: &[u8]) -> Result<HashMap<String, u64>, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let entry = header.metadata().as_ref().and_then(|entries| entries.get(ABOUT));
    let entry = entry.ok_or_else(|| format!("its metadata has no entry {ABOUT}"))?;
    let word = |word: &str| {
        let (name, number) = word.split_once('=')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    let words = entry.split(' ').map(|text| word(text).ok_or_else(|| format!("what is {text}?")));
    words.collect()
}

fn shape_of(bytes: &[u8]) -> Result<ModelShape, String> {
    let about = about(bytes)?;
    let mut sizes = [0; SHAPE.len()];
    for (name, size) in SHAPE.into_iter().zip(&mut sizes) {
        let number = about.get(name).ok_or_else(|| format!("its metadata has no {name}"))?;
        *size = *number as usize;
    }
    let [vocabulary, width, layers, heads, context] = sizes;
    let shape = ModelShape { vocabulary, width, layers, heads, context };
    if sizes.iter().any(|size| *size > 1 << 20) {
        return Err(format!("no tiny model is that large: {shape:?}"));
    }
    match shape.problem() {
        Some(problem) => Err(problem.to_owned()),
        None => Ok(shape),
    }
}

/// Reads one number for every parameter of a shape.
fn read_like(shape: ModelShape, file: &SafeTensors<'_>, prefix: &str) -> Result<Vec<f32>, String> {
    let layout = shape.layout();
    let mut values = vec![0.0; layout.norm.end];
    for tensor in &layout.tensors {
        let name = format!("{prefix}{}", tensor.name);
        let view = file.tensor(&name).map_err(|_| format!("there is no tensor {name}"))?;
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
        Some(at) => Err(format!("parameter {at} is no finite number")),
        None => Ok(values),
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), WeightsError> {
    let beside = path.with_extension("tmp");
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&beside, path)).map_err(|source| io_error(path, source))
}

fn io_error(path: &Path, source: io::Error) -> WeightsError {
    WeightsError::Io { path: path.into(), source }
}

fn content_error(path: &Path, problem: String) -> WeightsError {
    WeightsError::Content { path: path.into(), problem }
}
