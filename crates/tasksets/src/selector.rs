//! Selectors: the order of the rows of a taskset.
//!
//! The next rows follow from seed, number of returned rows and, for `difficulty_based`, the
//! feedback.

mod arguments;
mod difficulty;

use rand::seq::SliceRandom;

use self::difficulty::DifficultyEstimates;
use super::Result;
use super::error::TasksetErrorKind as Kind;
use super::rng::{rng, sample};
use super::rows::Rows;
use super::state::{EstimateState, SelectorState};
use rollway_config::{DataSelector, SelectorType};

/// Outcome of feedback, in tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedbackResult {
    /// Tasks a selector learned from.
    pub used: usize,
    /// Tasks whose selector does not learn.
    pub not_needed: usize,
    /// Tasks of no taskset.
    pub unknown: usize,
    /// Values that are not finite.
    pub invalid: usize,
    /// Values outside 0..=1, clamped; included in `used`.
    pub clipped: usize,
}

impl std::ops::AddAssign for FeedbackResult {
    fn add_assign(&mut self, other: Self) {
        self.used += other.used;
        self.not_needed += other.not_needed;
        self.unknown += other.unknown;
        self.invalid += other.invalid;
        self.clipped += other.clipped;
    }
}

#[derive(Debug)]
pub(super) struct Selector {
    config: DataSelector,
    rows: u32,
    /// Number of returned rows.
    taken: u64,
    order: SelectionOrder,
}

#[derive(Debug)]
enum SelectionOrder {
    Sequential,
    /// Epoch and its order.
    Shuffle(Option<(u64, Vec<u32>)>),
    Random,
    Fixed(Vec<u32>),
    Difficulty(DifficultyEstimates),
}

impl Selector {
    /// Creates the selector of the taskset `name`.
    pub(super) fn new(config: &DataSelector, name: &str, rows: &mut Rows) -> Result<Self> {
        let invalid = |what: String, hint: String| {
            let location = format!("taskset `{name}`, data_selector");
            Kind::Option.at(location, what, hint)
        };
        let order = match config.selector_type {
            SelectorType::DifficultyBased => {
                let arguments = arguments::read(&config.kwargs).map_err(|(a, b)| invalid(a, b))?;
                let [first, second] = config.feature_keys.as_slice() else {
                    let what =
                        format!("{} feature_keys, but 2 are needed", config.feature_keys.len());
                    let hint = "name the fields with the pass rates of a weak and a strong model";
                    return Err(invalid(what, hint.to_owned()));
                };
                let features = features(rows, name, &[first, second])?;
                let pairs = features.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
                SelectionOrder::Difficulty(DifficultyEstimates::new(pairs, arguments))
            }
            _ if !config.kwargs.is_empty() => {
                let names: Vec<&str> = config.kwargs.keys().map(String::as_str).collect();
                let what = format!("the selector takes no kwargs, but got {}", names.join(", "));
                return Err(invalid(what, "remove `kwargs`".to_owned()));
            }
            SelectorType::Sequential => SelectionOrder::Sequential,
            SelectorType::Shuffle => SelectionOrder::Shuffle(None),
            SelectorType::Random => SelectionOrder::Random,
            SelectorType::OfflineEasy2hard if config.feature_keys.is_empty() => {
                let hint = "name the field with the difficulty of a task";
                return Err(invalid(
                    "no feature_keys, but 1 is needed".to_owned(),
                    hint.to_owned(),
                ));
            }
            SelectorType::OfflineEasy2hard => {
                let keys: Vec<&String> = config.feature_keys.iter().collect();
                SelectionOrder::Fixed(easy_to_hard(&features(rows, name, &keys)?, keys.len()))
            }
        };
        let rows = rows.len() as u32;
        Ok(Self { config: config.clone(), rows, taken: 0, order })
    }

    pub(super) fn take(&mut self, count: u32) -> Vec<u32> {
        let mut rng = rng(self.config.seed, self.taken);
        let rows = match &mut self.order {
            SelectionOrder::Random => {
                rounds(self.rows, count, |count| sample(&mut rng, self.rows, count))
            }
            SelectionOrder::Difficulty(estimates) => {
                rounds(self.rows, count, |count| estimates.choose(&mut rng, count))
            }
            _ => (0..u64::from(count)).map(|more| self.at(self.taken + more)).collect(),
        };
        self.taken += u64::from(count);
        rows
    }

    /// Reverts a `take`.
    pub(super) fn put_back(&mut self, count: u32) {
        self.taken -= u64::from(count);
    }

    /// Returns the row at a position of the order.
    fn at(&mut self, position: u64) -> u32 {
        let rows = u64::from(self.rows);
        let (epoch, at) = (position / rows, (position % rows) as usize);
        match &mut self.order {
            SelectionOrder::Fixed(order) => order[at],
            SelectionOrder::Shuffle(cached) => {
                let order = match cached.take() {
                    Some((of, order)) if of == epoch => order,
                    _ => {
                        let mut order: Vec<u32> = (0..self.rows).collect();
                        order.shuffle(&mut rng(self.config.seed, epoch));
                        order
                    }
                };
                cached.insert((epoch, order)).1[at]
            }
            SelectionOrder::Sequential | SelectionOrder::Random | SelectionOrder::Difficulty(_) => {
                at as u32
            }
        }
    }

    /// Learns mean rewards by row; several values of a row are averaged.
    pub(super) fn feedback(&mut self, pairs: impl Iterator<Item = (u64, f64)>) -> FeedbackResult {
        let mut learned = FeedbackResult::default();
        let mut valid: Vec<(u32, f64)> = Vec::new();
        for (row, value) in pairs {
            match u32::try_from(row).ok().filter(|row| *row < self.rows) {
                None => learned.unknown += 1,
                Some(_) if !value.is_finite() => learned.invalid += 1,
                Some(row) => {
                    learned.clipped += usize::from(!(0.0..=1.0).contains(&value));
                    valid.push((row, value.clamp(0.0, 1.0)));
                }
            }
        }
        match &mut self.order {
            SelectionOrder::Difficulty(estimates) => {
                learned.used = valid.len();
                estimates.update(&row_means(valid));
            }
            _ => (learned.not_needed, learned.clipped) = (valid.len(), 0),
        }
        learned
    }

    pub(super) fn state(&self) -> SelectorState {
        let estimates = match &self.order {
            SelectionOrder::Difficulty(estimates) => Some(estimates.state()),
            _ => None,
        };
        SelectorState {
            selector_type: self.config.selector_type,
            seed: self.config.seed,
            feature_keys: self.config.feature_keys.clone(),
            taken: self.taken,
            estimates,
        }
    }

    /// Returns why a state does not belong to this selector.
    pub(super) fn refuses(&self, state: &SelectorState) -> Option<String> {
        let name = |it: SelectorType| serde_json::json!(it).to_string();
        let (now, was) = (&self.config, state);
        for (key, was, now) in [
            ("type", name(was.selector_type), name(now.selector_type)),
            ("seed", was.seed.to_string(), now.seed.to_string()),
            ("feature_keys", was.feature_keys.join(", "), now.feature_keys.join(", ")),
        ] {
            if was != now {
                return Some(format!("its selector's {key} was {was} and is {now}"));
            }
        }
        let fits = |state: &EstimateState| state.fits(self.rows as usize);
        match (&self.order, &state.estimates) {
            (SelectionOrder::Difficulty(_), None) => Some("its estimates are missing".to_owned()),
            (SelectionOrder::Difficulty(_), Some(state)) if !fits(state) => {
                Some("its estimates are damaged".to_owned())
            }
            _ => None,
        }
    }

    /// Resumes from an accepted state.
    pub(super) fn restore(&mut self, state: &SelectorState) {
        self.taken = state.taken;
        if let (SelectionOrder::Difficulty(estimates), Some(state)) =
            (&mut self.order, &state.estimates)
        {
            estimates.restore(state);
        }
    }
}

/// Chooses without repetition; beyond the number of rows the choice repeats.
fn rounds(rows: u32, count: u32, mut choose: impl FnMut(u32) -> Vec<u32>) -> Vec<u32> {
    if count <= rows {
        return choose(count);
    }
    let all = choose(rows);
    all.iter().copied().cycle().take(count as usize).collect()
}

/// Returns the mean per row, sorted by row.
fn row_means(mut pairs: Vec<(u32, f64)>) -> Vec<(u32, f64)> {
    pairs.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let mean = |pairs: &[(u32, f64)]| {
        let sum: f64 = pairs.iter().map(|(_, value)| value).sum();
        (pairs[0].0, sum / pairs.len() as f64)
    };
    pairs.chunk_by(|one, other| one.0 == other.0).map(mean).collect()
}

/// Returns rows by descending features, ties in row order.
fn easy_to_hard(features: &[f64], width: usize) -> Vec<u32> {
    let of = |row: u32| &features[row as usize * width..][..width];
    let mut order: Vec<u32> = (0..(features.len() / width) as u32).collect();
    order.sort_by(|one, other| {
        let mut pairs = of(*other).iter().zip(of(*one));
        let first = pairs.find_map(|(a, b)| Some(a.total_cmp(b)).filter(|it| it.is_ne()));
        first.unwrap_or(std::cmp::Ordering::Equal)
    });
    order
}

/// Reads the numeric features of all rows.
fn features(rows: &mut Rows, name: &str, keys: &[&String]) -> Result<Vec<f64>> {
    let fields = rows.keys();
    if let Some(key) = keys.iter().find(|key| !fields.has(key)) {
        let what = format!("feature_keys has `{key}`, but no row has that field");
        let hint = rollway_base::suggest::instead(key, fields.names());
        let location = format!("taskset `{name}`, data_selector");
        return Err(Kind::Key.at(location, what, hint));
    }
    let mut features = Vec::with_capacity(rows.len() as usize * keys.len());
    for index in 0..rows.len() {
        let row = rows.get(index)?;
        for key in keys {
            let value = row.get(key.as_str());
            let number = value.and_then(serde_json::Value::as_f64).filter(|it| it.is_finite());
            let Some(number) = number else {
                let shown = value.unwrap_or(&serde_json::Value::Null);
                let what = format!("`{key}` is {shown}, but the selector needs a number");
                let hint = "add it, or choose another selector";
                return Err(Kind::Row.at(rows.location(index), what, hint));
            };
            // Normalizes -0.0.
            features.push(number + 0.0);
        }
    }
    Ok(features)
}
