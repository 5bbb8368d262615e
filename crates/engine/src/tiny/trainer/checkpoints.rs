//! Published weights: `global_step_<n>/model.safetensors`, whole or not there at all, and the
//! number of the last one in `latest_state_dict_iteration.txt`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollway_tiny::Weights;

use super::TrainerError;
use super::state::{failed, replace, sync};

/// The file with the number of the last published weights.
pub const LATEST: &str = "latest_state_dict_iteration.txt";
/// The file with the weights in the directory of a step.
pub const MODEL: &str = "model.safetensors";
/// The file that says that a directory stays for good.
pub const FULL: &str = ".full_checkpoint";

const PREFIX: &str = "global_step_";

/// Returns the directory of the weights of a step.
pub fn directory(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{step}"))
}

/// Returns the step of the last published weights; none if there are none.
pub fn latest(folder: &Path) -> Result<Option<u64>, TrainerError> {
    let path = folder.join(LATEST);
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| TrainerError::File {
            path,
            problem: format!("it says {text:?}, which is no number of a step"),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path)(error)),
    }
}

/// Publishes weights. Whoever reads the number finds the directory.
pub(super) fn publish(
    folder: &Path,
    step: u64,
    weights: &Weights,
    is_full: bool,
) -> Result<(), TrainerError> {
    let place = directory(folder, step);
    let bytes = weights.to_bytes();
    // A trainer that died right here has left the same.
    let is_there = fs::read(place.join(MODEL)).is_ok_and(|there| there == bytes);
    if !is_there {
        let beside = place.with_extension("tmp");
        for old in [&beside, &place] {
            match fs::remove_dir_all(old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(old)(error));
                }
                _ => {}
            }
        }
        fs::create_dir_all(&beside).map_err(failed(&beside))?;
        replace(&beside.join(MODEL), &bytes)?;
        if is_full {
            replace(&beside.join(FULL), b"")?;
        }
        fs::rename(&beside, &place).map_err(failed(&place))?;
        sync(folder)?;
    }
    replace(&folder.join(LATEST), format!("{step}\n").as_bytes())
}

/// Removes published weights that do not stay for good, but for the last few.
pub(super) fn tidy(folder: &Path, max_passing: usize) -> Result<(), TrainerError> {
    let mut passing = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder))? {
        let entry = entry.map_err(failed(folder))?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u64>().ok());
        passing.extend(step.filter(|_| !entry.path().join(FULL).exists()));
    }
    passing.sort_unstable();
    let over = passing.len().saturating_sub(max_passing);
    for step in &passing[..over] {
        let place = directory(folder, *step);
        fs::remove_dir_all(&place).map_err(failed(&place))?;
    }
    Ok(())
}
