//! Saving and restoring: identical continuation, or an error.

use proptest::prelude::*;
use rollway_config::{SelectorType, Taskset};
use rollway_core::metrics::{PassRate, PassRates};
use rollway_tasksets::{SelectedTask, TaskStream, TasksetErrorKind, TasksetState};
use serde_json::json;

use crate::help::{SELECTORS, folder, picks, rows, selected, steps};

/// Reports deterministic pass rates.
fn report(tasks: &mut TaskStream, batch: &[SelectedTask]) {
    let rate = |drawn: &SelectedTask| PassRate {
        taskset_id: drawn.source.taskset_id as u64,
        index: drawn.index,
        value: (drawn.index * 7 % 10) as f64 / 9.0,
        count: 1,
    };
    tasks.feedback(&batch.iter().map(rate).collect::<PassRates>());
}

fn play(tasks: &mut TaskStream, steps: usize, size: u32) -> Vec<(usize, u64)> {
    let step = |_| {
        let batch = tasks.next_batch(size).unwrap()?;
        report(tasks, &batch);
        Some(picks(&batch))
    };
    (0..steps).map_while(step).flatten().collect()
}

/// Returns a state after a JSON round trip.
fn stored(state: &TasksetState) -> TasksetState {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_restored_state_continues_identically(
        sizes in prop::collection::vec((1_usize..15, 0_usize..5), 1..4),
        seed in any::<u64>(),
        before in 0_usize..12,
        size in 1_u32..6,
        do_sample in any::<bool>(),
    ) {
        let folder = folder();
        let set = |(at, (size, which)): (usize, &(usize, usize))| {
            let path = rows(&folder, &format!("{at}.jsonl"), *size);
            let mut set = selected(&path, SELECTORS[*which], seed);
            if SELECTORS[*which] == SelectorType::DifficultyBased {
                let kwargs = json!({"do_sample": do_sample, "adaptive_rho": true});
                set.data_selector.kwargs = kwargs.as_object().unwrap().clone();
            }
            set
        };
        let sets: Vec<Taskset> = sizes.iter().enumerate().map(set).collect();
        let mut whole = steps(sets.clone(), 20);
        play(&mut whole, before, size);
        let state = whole.state();
        let rest = play(&mut whole, 50, size);
        prop_assert_eq!(rest.len(), (20 - before) * size as usize);

        let mut resumed = steps(sets, 20);
        resumed.restore(&stored(&state)).unwrap();
        prop_assert_eq!(resumed.state(), state);
        prop_assert_eq!(play(&mut resumed, 50, size), rest);
        prop_assert_eq!(resumed.state(), whole.state());
    }
}

#[test]
fn a_state_of_other_files_is_refused() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 5);
    let set = || vec![selected(&path, SelectorType::Shuffle, 5)];
    let mut tasks = steps(set(), 9);
    play(&mut tasks, 2, 2);
    let state = stored(&tasks.state());

    // The same rows elsewhere are the same.
    let copy = folder.path().join("copy.jsonl");
    std::fs::copy(&path, &copy).unwrap();
    steps(vec![selected(&copy, SelectorType::Shuffle, 5)], 9).restore(&state).unwrap();

    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("a.jsonl 3", "A.jsonl 3")).unwrap();
    let mut other = steps(set(), 9);
    let error = other.restore(&state).unwrap_err();
    assert_eq!(error.kind, TasksetErrorKind::State);
    let expected = "taskset `taskset_0`: its rows are not those with which the job was saved";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(other.state().taken, 0);

    rows(&folder, "a.jsonl", 6);
    let error = steps(set(), 9).restore(&state).unwrap_err();
    assert!(error.what.contains("had 5 rows") && error.what.contains("has 6"), "{error}");
    assert!(error.hint.contains("continue_from_checkpoint: false"), "{error}");
}

#[test]
fn a_state_of_another_selector_or_a_damaged_one_is_refused() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 5);
    let with = |selector, seed| steps(vec![selected(&path, selector, seed)], 9);
    let mut tasks = with(SelectorType::DifficultyBased, 5);
    play(&mut tasks, 2, 2);
    let state = tasks.state();
    let refused = |state: &TasksetState, expected: &str| {
        let mut tasks = with(SelectorType::DifficultyBased, 5);
        let error = tasks.restore(state).unwrap_err();
        assert_eq!(error.kind, TasksetErrorKind::State);
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(tasks.state(), with(SelectorType::DifficultyBased, 5).state());
    };
    let changed = |change: &dyn Fn(&mut TasksetState)| {
        let mut state = state.clone();
        change(&mut state);
        state
    };
    refused(&with(SelectorType::Random, 5).state(), "type was \"random\"");
    refused(&with(SelectorType::DifficultyBased, 6).state(), "seed was 6 and is 5");
    refused(&changed(&|it| it.version = 1), "version 1, but this release reads 2");
    refused(&changed(&|it| it.taken += 1), "do not add up");
    refused(&changed(&|it| it.steps = 0), "do not add up");
    refused(&changed(&|it| it.sets.clear()), "had 0 tasksets and has 1");
    refused(&changed(&|it| it.sets[0].selector.estimates = None), "missing");
    for damage in [f64::NAN, 0.0, -1.0] {
        let damage = |it: &mut TasksetState| {
            it.sets[0].selector.estimates.as_mut().unwrap().betas[3] = damage;
        };
        refused(&changed(&damage), "damaged");
    }
    let text = serde_json::to_string(&state).unwrap();
    let damaged = text.replace(r#""alphas":""#, r#""alphas":"!"#);
    let error = serde_json::from_str::<TasksetState>(&damaged).unwrap_err();
    assert!(error.to_string().contains("Invalid symbol"), "{error}");
}

#[test]
fn a_longer_budget_continues_where_a_job_ended() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 5);
    let set = || vec![selected(&path, SelectorType::Shuffle, 5)];
    let mut short = steps(set(), 3);
    let first = play(&mut short, 9, 2);
    let mut long = steps(set(), 6);
    long.restore(&short.state()).unwrap();
    let second = play(&mut long, 9, 2);
    let whole = play(&mut steps(set(), 6), 9, 2);
    assert_eq!([first, second].concat(), whole);
}

#[test]
fn tasks_may_go_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<TaskStream>();
}
