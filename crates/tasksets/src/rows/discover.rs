//! Resolves a path to data files: the file itself, or the files of a split in a dataset folder.

mod folder;
mod saved;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{Result, TasksetError, TasksetErrorKind as Kind};
use rollway_base::suggest::{instead, nearest};

/// Maximum number of folder entries read for a hint.
const MAX_LISTED: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FileKind {
    Json,
    Csv,
    Parquet,
    Arrow,
}

impl FileKind {
    fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "json" | "jsonl" | "ndjson" => Some(Self::Json),
            "csv" | "tsv" => Some(Self::Csv),
            "parquet" | "pq" => Some(Self::Parquet),
            "arrow" | "feather" => Some(Self::Arrow),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Csv => "CSV",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow",
        }
    }
}

/// Returns the data files in order, at least one.
pub(super) fn files(
    path: &str,
    split: &str,
    subset: Option<&str>,
) -> Result<(FileKind, Vec<PathBuf>)> {
    let here = Path::new(path);
    let found = fs::metadata(here).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => missing_path(path),
        _ => TasksetError::io(here, &error),
    })?;
    if found.is_dir() {
        return in_folder(here, split, subset);
    }
    if !found.is_file() {
        let (what, hint) =
            ("not a regular file", "rows are read several times: save them to a file");
        return Err(Kind::Unsupported.at(path, what, hint));
    }
    if let Some(subset) = subset {
        let what = format!("a file has no subset `{subset}`");
        let hint = "remove `subset_name`, or name the folder of the dataset";
        return Err(Kind::Option.at(path, what, hint));
    }
    Ok((kind(here)?, vec![here.to_owned()]))
}

fn in_folder(here: &Path, split: &str, subset: Option<&str>) -> Result<(FileKind, Vec<PathBuf>)> {
    if split.contains('[') {
        let what = format!("`split: {split}` selects a part of a split, which is not supported");
        let hint = "name the split alone, and save the part as a dataset of its own";
        return Err(Kind::Option.at(here.display(), what, hint));
    }
    let Some(subset) = subset else {
        return match saved::files(here, split)? {
            Some(files) => Ok((FileKind::Arrow, files)),
            None => folder::files(here, split),
        };
    };
    for location in [here.join(subset), here.join("data").join(subset)] {
        if location.is_dir() {
            return in_folder(&location, split, None);
        }
    }
    let folders = names(here, true);
    let hint = instead(subset, folders.iter().map(String::as_str));
    let what = format!("there is no subset `{subset}`");
    Err(Kind::Missing.at(here.display(), what, hint))
}

/// Returns the format of a file by its extension or its first bytes.
fn kind(path: &Path) -> Result<FileKind> {
    if let Some(kind) = FileKind::of_name(path) {
        return Ok(kind);
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut head));
    read.map_err(|error| TasksetError::io(path, &error))?;
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).trim_ascii_start();
    match text {
        [b'P', b'A', b'R', b'1', ..] => Ok(FileKind::Parquet),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] | [0xff, 0xff, 0xff, 0xff, ..] => {
            Ok(FileKind::Arrow)
        }
        [b'{' | b'[', ..] => Ok(FileKind::Json),
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] | [b'P', b'K', 3, 4, ..] => {
            let (what, hint) = ("a compressed file, which is not supported", "unpack it first");
            Err(Kind::Unsupported.at(path.display(), what, hint))
        }
        _ => {
            let what = "neither its name nor its content identifies its format";
            let hint =
                "give it a name that ends with .jsonl, .json, .csv, .tsv, .parquet or .arrow";
            Err(Kind::Unsupported.at(path.display(), what, hint))
        }
    }
}

fn missing_path(path: &str) -> TasksetError {
    let here = Path::new(path);
    let parent = here.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = parent.unwrap_or_else(|| Path::new("."));
    let name = here.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let hint = if folder.is_dir() {
        let names = names(folder, false);
        match nearest(&name, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{}`?", folder.join(near).display()),
            None => format!("no file of a similar name is in {}", folder.display()),
        }
    } else if here.is_relative() && path.matches('/').count() == 1 && here.extension().is_none() {
        format!(
            "datasets are not downloaded: fetch it once, as with `hf download --repo-type dataset \
             {path} --local-dir data`, and name the folder"
        )
    } else {
        format!("there is no folder {} either", folder.display())
    };
    let hint = match std::env::current_dir() {
        Ok(current) if here.is_relative() => {
            format!("{hint} (relative to {}, the current folder)", current.display())
        }
        _ => hint,
    };
    Kind::Missing.at(path, "there is no such file or folder", hint)
}

/// Returns the sorted names in a folder, of subfolders only if `only_folders`.
fn names(folder: &Path, only_folders: bool) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let entries = entries.take(MAX_LISTED).filter_map(|entry| {
        let entry = entry.ok()?;
        let wanted = !only_folders || entry.path().is_dir();
        wanted.then(|| entry.file_name().to_string_lossy().into_owned())
    });
    let mut names: Vec<String> = entries.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}
