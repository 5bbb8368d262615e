//! A short run of every target with a fixed seed: its seeds, the regressions, and mutations of
//! both.

#![expect(clippy::unwrap_used, reason = "a panic fails the test and names the line")]

use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rollway_fuzz::{FuzzTarget, Mutator, TARGETS, is_of_columnar_reader};

/// Mutated inputs of each target.
const MUTATIONS: usize = 1500;

/// Panics of all threads: servers of targets run in tasks and threads of their own.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_of_columnar_reader(panic) {
                PANICS.fetch_add(1, Ordering::Relaxed);
                earlier(panic);
            }
        }));
    });
}

/// Inputs that once failed, by name of file.
fn regressions(target: &FuzzTarget) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn check(target: &FuzzTarget, input: &[u8]) {
    let before = PANICS.load(Ordering::Relaxed);
    target.check(input);
    let panics = PANICS.load(Ordering::Relaxed) - before;
    assert_eq!(panics, 0, "{}: a thread panicked at {}", target.name, input.escape_ascii());
}

// One test: memory is counted for the whole process.
#[test]
fn no_input_panics_hangs_or_takes_unbounded_memory() {
    count_panics();
    for target in TARGETS {
        let mut inputs = target.seeds();
        assert!(inputs.len() >= 4, "{} has {} seeds", target.name, inputs.len());
        // Values that are initialized once are no memory of an input.
        let (first, _) = inputs.split_first().unwrap();
        let _ = std::panic::catch_unwind(|| target.check(first));
        inputs.extend(regressions(target));
        inputs.iter().for_each(|input| check(target, input));
        let mut mutator = Mutator::new(1);
        for _ in 0..MUTATIONS {
            check(target, &mutator.mutated(&inputs, target.max_bytes));
        }
    }
}

#[test]
fn the_command_knows_all_targets() {
    let command = include_str!("../../../xtask/src/fuzz.rs");
    for target in TARGETS {
        let entry = format!("(\"{}\", {}),", target.name, target.max_bytes);
        assert!(command.contains(&entry), "xtask/src/fuzz.rs has no entry {entry}");
    }
}
