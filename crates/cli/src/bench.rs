//! Result table of mode `bench`: scores by checkpoint and evaluation set.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use rollway::explorer::{JobEvent, JobObserver};

/// Observer that collects scores and formats them.
#[derive(Debug, Default)]
pub(crate) struct BenchTable(Mutex<Scores>);

#[derive(Debug, Default)]
struct Scores {
    /// Evaluation sets in order of arrival.
    sets: Vec<String>,
    rows: BTreeMap<u64, BTreeMap<String, Option<f64>>>,
}

impl JobObserver for BenchTable {
    fn on_event(&self, event: &JobEvent) {
        let JobEvent::Evaluated { step, set, score, .. } = event else { return };
        let mut scores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !scores.sets.iter().any(|known| **known == **set) {
            scores.sets.push(set.to_string());
        }
        scores.rows.entry(*step).or_default().insert(set.to_string(), *score);
    }
}

impl fmt::Display for BenchTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(first) = scores.rows.values().next() else { return Ok(()) };
        let width = |set: &String| set.chars().count().max(7);
        write!(f, "{:>10}", "checkpoint")?;
        for set in &scores.sets {
            write!(f, "  {set:>width$}  {:>7}", "", width = width(set))?;
        }
        writeln!(f)?;
        for (number, (step, row)) in scores.rows.iter().enumerate() {
            write!(f, "{step:>10}")?;
            for set in &scores.sets {
                let score = row.get(set).copied().flatten();
                let before = first.get(set).copied().flatten();
                let change = score.zip(before).filter(|_| number > 0);
                let change =
                    change.map(|(score, before)| format!("{:+.1}", percent(score - before)));
                let score =
                    score.map_or_else(|| "-".to_owned(), |it| format!("{:.1} %", percent(it)));
                let change = change.unwrap_or_default();
                write!(f, "  {score:>width$}  {change:>7}", width = width(set))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn percent(score: f64) -> f64 {
    100.0 * score
}
