//! Orders and budgets.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rollway_config::{DataSelector, SelectorType, Taskset};
use rollway_core::metrics::{PassRate, PassRates};
use rollway_tasksets::TasksetOpener;
use serde_json::json;

use crate::help::{
    SELECTORS, buffer, drain, epochs, folder, picks, rows, selected, steps, taskset,
};

fn counts(picks: &[(usize, u64)]) -> BTreeMap<(usize, u64), usize> {
    let mut counts = BTreeMap::new();
    picks.iter().for_each(|pick| *counts.entry(*pick).or_default() += 1);
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_epoch_has_every_row_once(
        sizes in prop::collection::vec(1_usize..12, 1..4),
        which in prop::sample::select(vec![0_usize, 1, 3]),
        seed in any::<u64>(),
        total in 1_u32..4,
        batch in 1_u32..5,
    ) {
        let folder = folder();
        let set = |(at, size): (usize, &usize)| {
            selected(&rows(&folder, &format!("{at}.jsonl"), *size), SELECTORS[which], seed)
        };
        let sets: Vec<Taskset> = sizes.iter().enumerate().map(set).collect();
        let all: usize = sizes.iter().sum();
        let full = all * total as usize / batch as usize * batch as usize;
        prop_assume!(full > 0);
        let mut tasks = epochs(sets.clone(), total);
        prop_assert_eq!(tasks.total_batches(batch), (full / batch as usize) as u64);
        let mut found = Vec::new();
        while let Some(drawn) = tasks.next_batch(batch).unwrap() {
            prop_assert_eq!(drawn.len(), batch as usize);
            for drawn in &drawn {
                prop_assert_eq!(drawn.epoch as usize, found.len() / all);
                found.push((drawn.source.taskset_id, drawn.index));
            }
        }
        prop_assert_eq!(found.len(), full);
        prop_assert_eq!(tasks.left_over() as usize, all * total as usize - full);
        prop_assert!(tasks.next_batch(batch).unwrap().is_none());
        for epoch in found.chunks(all) {
            prop_assert!(counts(epoch).values().all(|count| *count == 1));
        }
        // The same again gives the same.
        prop_assert_eq!(drain(&mut epochs(sets, total), batch), found);
    }

    #[test]
    fn steps_are_the_budget_where_they_are_given(
        size in 1_usize..9, which in 0_usize..5, wanted in 1_u32..8, batch in 1_u32..20,
    ) {
        let folder = folder();
        let path = rows(&folder, "a.jsonl", size);
        let mut tasks = steps(vec![selected(&path, SELECTORS[which], 7)], wanted);
        let found = drain(&mut tasks, batch);
        prop_assert_eq!(found.len() as u32, wanted * batch);
        // Inside a batch nothing is repeated before everything was there.
        for chunk in found.chunks(batch as usize) {
            let most = chunk.len().div_ceil(size);
            let straddles = which == 0 || which == 1 || which == 3;
            let most = if straddles { most + 1 } else { most };
            prop_assert!(counts(chunk).values().all(|count| *count <= most));
        }
    }
}

#[test]
fn every_epoch_of_a_shuffle_has_an_order_of_its_own() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 40);
    let found = |seed| drain(&mut epochs(vec![selected(&path, SelectorType::Shuffle, seed)], 3), 8);
    let one = found(1);
    let orders: Vec<_> = one.chunks(40).collect();
    assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2]);
    assert_ne!(one, found(2));
}

#[test]
fn easy_tasks_come_first_and_equal_ones_as_they_stand() {
    let folder = folder();
    let feature = [0.5, 0.9, 0.5, 1.0, -0.0, 0.0];
    let line = |easy: &f64| json!({"prompt": "x", "easy": easy}).to_string() + "\n";
    let text: String = feature.iter().map(line).collect();
    let path = crate::help::write(&folder, "a.jsonl", text);
    let data_selector = DataSelector {
        selector_type: SelectorType::OfflineEasy2hard,
        feature_keys: vec!["easy".into()],
        ..DataSelector::default()
    };
    let mut tasks = epochs(vec![Taskset { data_selector, ..taskset(&path) }], 2);
    let found: Vec<u64> = drain(&mut tasks, 4).into_iter().map(|(_, index)| index).collect();
    assert_eq!(found, [3, 1, 0, 2, 4, 5, 3, 1, 0, 2, 4, 5]);
}

#[test]
fn tasksets_have_turns_in_proportion_to_their_rows() {
    let folder = folder();
    let sets = [("a.jsonl", 300), ("b.jsonl", 100)]
        .map(|(name, size)| selected(&rows(&folder, name, size), SelectorType::Random, 5));
    let mut tasks = epochs(sets.to_vec(), 1);
    let batches: Vec<_> = std::iter::from_fn(|| tasks.next_batch(40).unwrap()).collect();
    let of_first = |batch: &Vec<_>| picks(batch).iter().filter(|(set, _)| *set == 0).count();
    let shares: Vec<usize> = batches.iter().map(of_first).collect();
    assert_eq!(shares.iter().sum::<usize>(), 300);
    // 30 of 40 are expected; chance decides within a few deviations.
    assert!(shares.iter().all(|share| (18..=39).contains(share)), "{shares:?}");
    assert!(shares.iter().any(|share| *share != 30), "{shares:?}");
}

#[test]
fn an_evaluation_has_every_row_in_order_whatever_the_budget() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 7);
    let mut buffer = buffer(Vec::new());
    buffer.total_steps = Some(1);
    let shuffled = selected(&path, SelectorType::Shuffle, 5);
    buffer.explorer_input.eval_tasksets = vec![shuffled];
    let mut evals = TasksetOpener::new(&buffer).evals().unwrap();
    let tasks = &mut evals[0];
    for _ in 0..2 {
        let all: Vec<u64> = tasks.all().map(|drawn| drawn.unwrap().index).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6]);
    }
    assert_eq!(tasks.total_batches(3), 3);
    let sizes: Vec<usize> =
        std::iter::from_fn(|| tasks.next_batch(3).unwrap()).map(|batch| batch.len()).collect();
    assert_eq!(sizes, [3, 3, 1]);
}

fn metric(rates: &[(u64, u64, f64)]) -> PassRates {
    let rate = |&(taskset_id, index, value)| PassRate { taskset_id, index, value, count: 1 };
    rates.iter().map(rate).collect()
}

#[test]
fn difficulty_goes_where_the_target_is() {
    let folder = folder();
    let path = rows(&folder, "a.jsonl", 50);
    let mut set = selected(&path, SelectorType::DifficultyBased, 5);
    let kwargs = json!({"tau": 0, "target_reward": 0.5});
    set.data_selector.kwargs = kwargs.as_object().unwrap().clone();
    let mut tasks = steps(vec![set], 10);
    // The model is as good as the strong one: rows in the middle are solved half the time.
    let rates: Vec<(u64, u64, f64)> = (0..50).map(|at| (0, at, at as f64 / 50.0)).collect();
    for _ in 0..5 {
        tasks.feedback(&metric(&rates));
    }
    let batch = tasks.next_batch(5).unwrap().unwrap();
    let mut found: Vec<u64> = picks(&batch).into_iter().map(|(_, index)| index).collect();
    assert_eq!(found[0], 25);
    found.sort_unstable();
    assert_eq!(found, [23, 24, 25, 26, 27]);
}

#[test]
fn feedback_about_anything_is_counted_and_harmless() {
    let folder = folder();
    let one = selected(&rows(&folder, "a.jsonl", 5), SelectorType::DifficultyBased, 5);
    let other = selected(&rows(&folder, "b.jsonl", 5), SelectorType::Shuffle, 5);
    let mut tasks = steps(vec![one, other], 10);
    let before = tasks.state();
    assert_eq!(tasks.feedback(&metric(&[])), Default::default());
    let rates = [(0, 5, 0.5), (0, u64::MAX, 0.5), (7, 0, 0.5), (0, 1, f64::NAN), (1, 2, 3.0)];
    let learned = tasks.feedback(&metric(&rates));
    assert_eq!((learned.unknown, learned.invalid, learned.not_needed), (3, 1, 1));
    assert_eq!((learned.used, learned.clipped), (0, 0));
    assert_eq!(tasks.state(), before);
    let learned = tasks.feedback(&metric(&[(0, 1, 7.0), (0, 2, -1.0), (0, 3, 0.5)]));
    assert_eq!((learned.used, learned.clipped), (3, 2));
    assert_eq!(tasks.learned().unknown, 3);
    assert_ne!(tasks.state(), before);
    assert!(tasks.next_batch(8).unwrap().is_some());
}
