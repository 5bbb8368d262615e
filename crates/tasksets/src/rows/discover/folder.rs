//! Dataset folders whose file names state the split: `train.jsonl`,
//! `data/train-00000-of-00002.parquet`, `main/test.csv`, `train/0000.parquet`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::FileKind;
use crate::{Result, TasksetError, TasksetErrorKind as Kind};
use rollway_base::suggest::instead;

/// Limits of the search.
const MAX_DEPTH: usize = 4;
const MAX_FILES: usize = 100_000;

/// Metadata files of datasets.
const DESCRIBING: &[&str] =
    &["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"];

/// Names of splits with their synonyms.
const SPLITS: &[&[&str]] = &[
    &["train", "training"],
    &["validation", "valid", "val", "dev"],
    &["test", "testing", "eval", "evaluation"],
];

/// A data file with the split and the subset in its path.
struct FoundFiles {
    path: PathBuf,
    kind: FileKind,
    split: Option<String>,
    subset: Option<String>,
}

pub(super) fn files(here: &Path, split: &str) -> Result<(FileKind, Vec<PathBuf>)> {
    let mut found = Vec::new();
    collect_files(here, here, 0, &mut found)?;
    if found.is_empty() {
        let what = "the folder has no data files";
        let hint = "name a folder or a file with .jsonl, .json, .csv, .parquet or .arrow";
        return Err(Kind::Missing.at(here.display(), what, hint));
    }
    let splits: BTreeSet<&str> = found.iter().filter_map(|it| it.split.as_deref()).collect();
    let matching = splits.iter().copied().find(|name| is_same(name, split));
    // Files without split names all belong to the default split.
    if matching.is_none() && !(splits.is_empty() && split == "train") {
        let what = format!("there is no split `{split}`");
        let hint = instead(split, splits.iter().copied());
        return Err(Kind::Missing.at(here.display(), what, hint));
    }
    let matching = matching.map(str::to_owned);
    found.retain(|it| it.split == matching);
    only_one(here, &found)?;
    let kind = found[0].kind;
    Ok((kind, found.into_iter().map(|it| it.path).collect()))
}

/// Refuses ambiguous files: several subsets or several formats.
fn only_one(here: &Path, found: &[FoundFiles]) -> Result<()> {
    let subsets: BTreeSet<&str> =
        found.iter().map(|it| it.subset.as_deref().unwrap_or_default()).collect();
    if subsets.len() > 1 {
        let names: Vec<&str> = subsets.into_iter().filter(|it| !it.is_empty()).collect();
        let what = format!("it has several subsets: {}", names.join(", "));
        let hint = format!("choose one: `subset_name: {}`", names[0]);
        return Err(Kind::Option.at(here.display(), what, hint));
    }
    let kinds: BTreeMap<FileKind, &Path> =
        found.iter().rev().map(|it| (it.kind, it.path.as_path())).collect();
    if kinds.len() > 1 {
        let names: Vec<&str> = kinds.keys().map(|kind| kind.name()).collect();
        let what = format!("the split exists as {}", names.join(" and as "));
        let first = kinds.into_values().next().unwrap_or(here);
        let hint = format!("name a file, such as {}", first.display());
        return Err(Kind::Option.at(here.display(), what, hint));
    }
    Ok(())
}

fn collect_files(
    root: &Path,
    folder: &Path,
    depth: usize,
    found: &mut Vec<FoundFiles>,
) -> Result<()> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.take(MAX_FILES).map(|entry| Ok(entry?.path())).collect()
    };
    let mut entries = read().map_err(|error| TasksetError::io(folder, &error))?;
    entries.sort();
    for path in entries {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if name.starts_with(['.', '_']) || DESCRIBING.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            if depth < MAX_DEPTH {
                collect_files(root, &path, depth + 1, found)?;
            }
        } else if let Some(kind) = FileKind::of_name(&path) {
            if found.len() >= MAX_FILES {
                let what = format!("it has more than {MAX_FILES} files of data");
                let hint = "merge them into larger ones";
                return Err(Kind::Unsupported.at(root.display(), what, hint));
            }
            let (split, subset) = read_path(path.strip_prefix(root).unwrap_or(&path));
            found.push(FoundFiles { path, kind, split, subset });
        }
    }
    Ok(())
}

/// Returns the split and the subset in a path.
fn read_path(path: &Path) -> (Option<String>, Option<String>) {
    let folders = path.parent().into_iter().flat_map(Path::components);
    let (mut split, mut subset) = (None, None);
    for folder in folders {
        let name = folder.as_os_str().to_string_lossy();
        if SPLITS.iter().any(|names| names.contains(&name.as_ref())) {
            split = Some(name.into_owned());
        } else if name != "data" && subset.is_none() {
            subset = Some(name.into_owned());
        }
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    (named_split(&stem).or(split), subset)
}

/// Returns the split in a file name.
fn named_split(stem: &str) -> Option<String> {
    if let Some(name) = before_number(stem) {
        return Some(name.to_owned()).filter(|name| !matches!(name.as_str(), "data" | "part"));
    }
    let mut words = stem.split(|c: char| !c.is_alphanumeric());
    let is_split = |word: &&str| {
        let word = word.to_lowercase();
        SPLITS.iter().any(|names| names.contains(&word.as_str()))
    };
    words.find(is_split).map(str::to_lowercase)
}

/// Returns the part before `-00000-of-00002`.
fn before_number(stem: &str) -> Option<&str> {
    let is_number = |text: &str| text.len() >= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, total) = stem.rsplit_once("-of-")?;
    // Some names end with a hash.
    let total = total.split_once('-').map_or(total, |(total, _)| total);
    let (name, number) = rest.rsplit_once('-')?;
    (is_number(total) && is_number(number) && !name.is_empty()).then_some(name)
}

fn is_same(one: &str, other: &str) -> bool {
    one == other || SPLITS.iter().any(|names| names.contains(&one) && names.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_split_and_subset() {
        for (path, split, subset) in [
            ("train.jsonl", Some("train"), None),
            ("data/train-00000-of-00002.parquet", Some("train"), None),
            ("data/train_sft-00000-of-00002-0f3a.parquet", Some("train_sft"), None),
            ("main/test-00000-of-00001.parquet", Some("test"), Some("main")),
            ("socratic/train/0000.parquet", Some("train"), Some("socratic")),
            ("my_dev_set.csv", Some("dev"), None),
            ("trainer.csv", None, None),
            ("data-00000-of-00001.arrow", None, None),
        ] {
            let found = read_path(Path::new(path));
            assert_eq!((found.0.as_deref(), found.1.as_deref()), (split, subset), "{path}");
        }
    }
}
