//! What runners say about themselves, and what is known about where they are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rollway_core::{Life, RunnerId};

use super::launch::Known;
use super::lock;
use crate::workers::Reporter;

/// What runners last said about themselves, for people; with `node`, where the process of a runner
/// is, and `waiting`, why it has not been started yet.
#[derive(Clone, Debug, Default)]
pub struct RunnerStates(Arc<Mutex<States>>);

#[derive(Debug, Default)]
struct States {
    told: BTreeMap<RunnerId, BTreeMap<String, String>>,
    known: BTreeMap<RunnerId, (Life, Known)>,
}

impl RunnerStates {
    /// Returns the state of every runner of which one is known.
    pub fn get(&self) -> BTreeMap<RunnerId, BTreeMap<String, String>> {
        let states = lock(&self.0);
        let mut all = states.told.clone();
        for (runner, (_, known)) in &states.known {
            let state = all.entry(*runner).or_default();
            let mut add = |name: &str, text: &Option<String>| {
                state.extend(text.iter().map(|text| (name.to_owned(), text.clone())));
            };
            add("node", &known.place);
            add("waiting", &known.waits);
        }
        all
    }

    /// Takes what a runner says about itself.
    pub(super) fn tell(&self, runner: RunnerId, state: BTreeMap<String, String>) {
        lock(&self.0).told.insert(runner, state);
    }

    /// Notes where a life of a runner is, or why it is not anywhere yet.
    pub(super) fn locate(&self, reporter: &Reporter, known: &Known) {
        let known = (reporter.life(), known.clone());
        lock(&self.0).known.insert(reporter.runner(), known);
    }

    /// A life of a runner is nowhere any more.
    pub(super) fn forget(&self, runner: RunnerId, life: Life) {
        let mut states = lock(&self.0);
        if states.known.get(&runner).is_some_and(|(current, _)| *current == life) {
            states.known.remove(&runner);
        }
    }
}
