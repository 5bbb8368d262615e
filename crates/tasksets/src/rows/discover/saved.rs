//! Folders written by `save_to_disk` of the `datasets` library: Arrow files with metadata, of one
//! split or with a folder per split.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::names;
use crate::{Result, TasksetError, TasksetErrorKind as Kind};
use rollway_base::suggest::instead;

const DICT: &str = "dataset_dict.json";
const STATE: &str = "state.json";
const INFO: &str = "dataset_info.json";

/// Returns the files of a split. `None`: the folder was not written by `save_to_disk`.
pub(super) fn files(here: &Path, split: &str) -> Result<Option<Vec<PathBuf>>> {
    if !here.join(DICT).is_file() {
        return one(here, Some(split));
    }
    let dict = read(&here.join(DICT))?;
    let listed = dict["splits"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let splits: Vec<&str> = listed.collect();
    if !splits.contains(&split) {
        let what = format!("there is no split `{split}`");
        let hint = instead(split, splits.into_iter());
        return Err(Kind::Missing.at(here.display(), what, hint));
    }
    let folder = here.join(split);
    match one(&folder, None)? {
        Some(files) => Ok(Some(files)),
        None => {
            let what = format!("{DICT} lists it, but there is no dataset in it");
            let hint = "copy the whole dataset again";
            Err(Kind::Missing.at(folder.display(), what, hint))
        }
    }
}

/// Returns the files of a single-split folder; `split` is checked if given.
fn one(here: &Path, split: Option<&str>) -> Result<Option<Vec<PathBuf>>> {
    let is_data = |name: &String| {
        let arrow = name.ends_with(".arrow") && !name.starts_with("cache-");
        arrow && (name.starts_with("data-") || name == "dataset.arrow")
    };
    let present: Vec<String> = names(here, false).into_iter().filter(is_data).collect();
    let state = here.join(STATE);
    if !state.is_file() {
        let described = here.join(INFO).is_file() && !present.is_empty();
        return Ok(described.then(|| present.iter().map(|name| here.join(name)).collect()));
    }
    let state = read(&state)?;
    let Some(listed) = state["_data_files"].as_array() else { return Ok(None) };
    let indexed = |key: &str| state[key].as_array().is_some_and(|list| !list.is_empty());
    if indexed("_indices_data_files") || indexed("_indices_files") {
        let what = "its rows are selected by a table of indices, which is not supported";
        let hint = "call flatten_indices() and save it again";
        return Err(Kind::Unsupported.at(here.display(), what, hint));
    }
    // `train` is the default and also selects the only split of a folder.
    if let (Some(wanted), Some(is)) = (split, state["_split"].as_str())
        && wanted != is
        && wanted != "train"
    {
        let what = format!("there is no split `{wanted}`");
        let hint = format!("it has only the split `{is}`");
        return Err(Kind::Missing.at(here.display(), what, hint));
    }
    let name = |file: &Value| file["filename"].as_str().map(|name| here.join(name));
    let files: Vec<PathBuf> = listed.iter().filter_map(name).collect();
    if let Some(missing) = files.iter().find(|file| !file.is_file()) {
        let what = format!("{STATE} lists it, but it does not exist");
        let hint = "copy the whole dataset again";
        return Err(Kind::Missing.at(missing.display(), what, hint));
    }
    if files.is_empty() {
        let hint = "a job needs at least one task";
        return Err(Kind::Empty.at(here.display(), "it has no rows", hint));
    }
    Ok(Some(files))
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).map_err(|error| TasksetError::io(path, &error))?;
    serde_json::from_slice(&text).map_err(|error| {
        let what = format!("not the description of a dataset: {error}");
        let hint = "copy the whole dataset again";
        Kind::Row.at(path.display(), what, hint)
    })
}
