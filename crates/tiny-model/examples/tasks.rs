//! Writes the tasks of `examples/arithmetic.yaml`: training and held-out sums.
//!
//! `cargo run -p rollway-tiny-model --example tasks -- [FOLDER]`; the same files every time.

#[expect(dead_code, reason = "no model runs here")]
mod sums;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use rollway_tiny_model::SeededRng;

const TRAIN: usize = 2400;
const EVAL: usize = 400;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map_or_else(
        || concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/arithmetic").into(),
        PathBuf::from,
    );
    fs::create_dir_all(&folder)?;
    let mut chance = SeededRng::new(1);
    for (name, count, held_out) in [("train", TRAIN, false), ("held_out", EVAL, true)] {
        let problems = draw(&mut chance, count, held_out);
        fs::write(folder.join(format!("{name}.jsonl")), lines(&problems))?;
    }
    Ok(())
}

/// Draws distinct problems.
fn draw(chance: &mut SeededRng, count: usize, held_out: bool) -> Vec<sums::Problem> {
    let mut known = BTreeSet::new();
    let mut problems = Vec::new();
    while problems.len() < count {
        let problem = (chance.below(100), chance.below(100));
        if sums::held_out(problem) == held_out && known.insert(problem) {
            problems.push(problem);
        }
    }
    problems
}

fn lines(problems: &[sums::Problem]) -> String {
    let line = |problem: &sums::Problem| {
        let (question, answer) = (sums::question(*problem), sums::sum(*problem));
        format!("{{\"question\": \"{question}\", \"answer\": \"{answer}\"}}\n")
    };
    problems.iter().map(line).collect()
}
