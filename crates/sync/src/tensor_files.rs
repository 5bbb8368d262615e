//! Validates and reads safetensors files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;

use super::weight_folder::MODEL;

/// Index of weights in several files.
const INDEX: &str = "model.safetensors.index.json";

/// Maximum size of a header.
const MAX_HEAD: u64 = 100_000_000;

/// Maximum number of suggested names.
const MAX_NEAR: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    pub name: String,
    /// Safetensors type: `F32`, `BF16`.
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Row-major, little endian.
    pub bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum TensorReadError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The file is incomplete or not a safetensors file.
    #[error("{}: {problem}", path.display())]
    Content { path: PathBuf, problem: String },
    /// There is no such tensor; `near` are similar names.
    #[error("{} has no tensor {name:?}{}", path.display(), listed(near))]
    Unknown { path: PathBuf, name: String, near: Vec<String> },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return ": it has no tensors".to_owned();
    }
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    format!("; similar names: {}", names.join(", "))
}

struct TensorFileHead {
    path: PathBuf,
    /// Offset of the data.
    data: u64,
    meta: Metadata,
}

#[derive(Deserialize)]
struct TensorIndex {
    weight_map: BTreeMap<String, String>,
}

/// Checks headers and sizes of the safetensors in a folder, or of one file.
pub fn check(path: &Path) -> Result<(), TensorReadError> {
    heads(path).map(drop)
}

/// Reads one tensor from a folder or a file. Blocks.
pub fn read(path: &Path, name: &str) -> Result<NamedTensor, TensorReadError> {
    let heads = heads(path)?;
    let found = heads.iter().find_map(|head| Some((head, head.meta.info(name)?)));
    let Some((head, info)) = found else {
        let names = heads.iter().flat_map(|head| head.meta.offset_keys());
        let near = similar_names(name, names.collect());
        return Err(TensorReadError::Unknown { path: path.into(), name: name.into(), near });
    };
    let bytes = numbers(head, info).map_err(|source| io_error(&head.path, source))?;
    let (dtype, shape) = (info.dtype.to_string(), info.shape.clone());
    Ok(NamedTensor { name: name.to_owned(), dtype, shape, bytes })
}

fn numbers(head: &TensorFileHead, info: &TensorInfo) -> io::Result<Vec<u8>> {
    let (begin, end) = info.data_offsets;
    let mut file = File::open(&head.path)?;
    file.seek(SeekFrom::Start(head.data + begin as u64))?;
    let mut bytes = vec![0; end - begin];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns the most similar names, best first.
fn similar_names(name: &str, mut names: Vec<String>) -> Vec<String> {
    let distance = |other: &String| strsim::jaro_winkler(name, other);
    names.sort_by(|a, b| distance(b).total_cmp(&distance(a)).then_with(|| a.cmp(b)));
    names.truncate(MAX_NEAR);
    names
}

/// Reads the headers of all files.
fn heads(path: &Path) -> Result<Vec<TensorFileHead>, TensorReadError> {
    files(path)?.into_iter().map(head).collect()
}

fn files(path: &Path) -> Result<Vec<PathBuf>, TensorReadError> {
    let about = fs::metadata(path).map_err(|source| io_error(path, source))?;
    if about.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    if path.join(MODEL).is_file() {
        return Ok(vec![path.join(MODEL)]);
    }
    let index = path.join(INDEX);
    let mut names: Vec<String> = match fs::read(&index) {
        Ok(bytes) => {
            let wrong = |error| content(&index, format!("it is not an index of weights: {error}"));
            let index: TensorIndex = serde_json::from_slice(&bytes).map_err(wrong)?;
            index.weight_map.into_values().collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let entries = fs::read_dir(path).map_err(|source| io_error(path, source))?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.filter(|name| name.ends_with(".safetensors")).collect()
        }
        Err(source) => return Err(io_error(&index, source)),
    };
    names.sort_unstable();
    names.dedup();
    match names.iter().find(|name| name.contains('/')) {
        Some(name) => Err(content(&index, format!("{name:?} is not in this folder"))),
        None if names.is_empty() => {
            Err(content(path, format!("there is no {MODEL} nor any other safetensors file")))
        }
        None => Ok(names.into_iter().map(|name| path.join(name)).collect()),
    }
}

fn head(path: PathBuf) -> Result<TensorFileHead, TensorReadError> {
    let fail = |source| io_error(&path, source);
    let mut file = File::open(&path).map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    let torn = || content(&path, format!("it ends after {size} bytes and is not complete"));
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| torn())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEAD {
        return Err(content(&path, "it is not a safetensors file".to_owned()));
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).map_err(fail)?;
    if (text.len() as u64) < length {
        return Err(torn());
    }
    let wrong = |error| content(&path, format!("it is not a safetensors file: {error}"));
    let meta: Metadata = serde_json::from_slice(&text).map_err(wrong)?;
    let data = 8 + length;
    if data + meta.data_len() as u64 != size {
        return Err(torn());
    }
    Ok(TensorFileHead { data, meta, path })
}

fn io_error(path: &Path, source: io::Error) -> TensorReadError {
    TensorReadError::Io { path: path.into(), source }
}

fn content(path: &Path, problem: String) -> TensorReadError {
    TensorReadError::Content { path: path.into(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with tensors of two floats each.
    fn file(names: &[&str]) -> Vec<u8> {
        let entries = names.iter().enumerate().map(|(at, name)| {
            let (begin, end) = (8 * at, 8 * at + 8);
            format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{begin},{end}]}}"#)
        });
        let head = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
        bytes.extend(head.as_bytes());
        for at in 0..2 * names.len() {
            bytes.extend((at as f32).to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_tensor_is_found_by_name_in_one_or_several_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("a.safetensors"), file(&["wte", "layers.0.up"])).unwrap();
        fs::write(root.join("b.safetensors"), file(&["layers.1.up"])).unwrap();
        let index = r#"{"weight_map":{"wte":"a.safetensors","layers.1.up":"b.safetensors"}}"#;
        fs::write(root.join(INDEX), index).unwrap();
        let tensor = read(root, "layers.0.up").unwrap();
        assert_eq!((tensor.dtype.as_str(), tensor.shape.as_slice()), ("F32", &[2][..]));
        assert_eq!(tensor.bytes, [2f32.to_le_bytes(), 3f32.to_le_bytes()].concat());
        assert_eq!(read(root, "layers.1.up").unwrap().bytes[..4], 0f32.to_le_bytes());
        let error = read(root, "layers.2.up").unwrap_err().to_string();
        assert!(error.contains(r#"similar names: "layers.0.up", "layers.1.up""#), "{error}");
        fs::write(root.join(MODEL), file(&["alone"])).unwrap();
        assert_eq!(read(root, "alone").unwrap().name, "alone");
    }

    #[test]
    fn incomplete_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert!(check(root).unwrap_err().to_string().contains("no model.safetensors"));
        let bytes = file(&["wte"]);
        for length in 0..bytes.len() {
            fs::write(root.join(MODEL), &bytes[..length]).unwrap();
            check(root).unwrap_err();
        }
        fs::write(root.join(MODEL), &bytes).unwrap();
        check(root).unwrap();
        fs::write(root.join(MODEL), b"this is no such file, but has a long head").unwrap();
        assert!(check(root).unwrap_err().to_string().contains("not a safetensors file"));
    }
}
