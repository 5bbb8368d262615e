//! What runners say about themselves, and what is known about where they are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use rollway_core::{AttemptId, Incarnation, RunnerId};
use rollway_gateway::gateway::CallInFlight;

use super::RunStages;
use crate::events::{self, RunEvent, RunEventKind, RunObservers};

/// What a runner says about the attempt that it is at.
const NOW: [&str; 4] = ["stage", "stage_since", "place", "run"];

/// What runners last said about themselves, for people; with `node`, where the process of a runner
/// is, and `waiting`, why it has not been started yet.
#[derive(Clone, Debug, Default)]
pub struct RunnerStatusTable {
    states: Arc<Mutex<States>>,
    calls: Option<RunCalls>,
}

/// Finds the model calls that an attempt has under way.
#[derive(Clone)]
struct RunCalls(Arc<dyn Fn(AttemptId) -> Vec<CallInFlight> + Send + Sync>);

impl fmt::Debug for RunCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}

/// Location of a worker that has not completed its handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchState {
    /// Host and process id.
    pub(crate) place: Option<String>,
    /// Reason for which the worker cannot be started yet.
    pub(crate) waits: Option<String>,
}

/// What a runner last said.
#[derive(Debug)]
struct ReportedState {
    life: Incarnation,
    attempt: Option<AttemptId>,
    state: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct States {
    told: BTreeMap<RunnerId, ReportedState>,
    /// Of runners in this process.
    stages: BTreeMap<RunnerId, (Incarnation, RunStages)>,
    known: BTreeMap<RunnerId, (Incarnation, LaunchState)>,
    /// Who is told where runners are.
    observers: RunObservers,
}

impl RunnerStatusTable {
    /// Returns the state of every runner of which one is known.
    pub fn get(&self) -> BTreeMap<RunnerId, BTreeMap<String, String>> {
        let states = self.states.lock();
        let mut all: BTreeMap<_, _> =
            states.told.iter().map(|(runner, told)| (*runner, told.state.clone())).collect();
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
    pub(crate) fn tell(
        &self,
        (runner, life): (RunnerId, Incarnation),
        attempt: Option<AttemptId>,
        state: BTreeMap<String, String>,
    ) {
        self.states.lock().told.insert(runner, ReportedState { life, attempt, state });
    }

    /// Returns where a life of a runner in this process keeps what its runs are at.
    pub(crate) fn stages(&self, runner: RunnerId, life: Incarnation) -> RunStages {
        let stages = RunStages::default();
        self.states.lock().stages.insert(runner, (life, stages.clone()));
        stages
    }

    /// As these, with those who know of model calls that are under way.
    #[must_use]
    pub(crate) fn with_calls(
        self,
        calls: impl Fn(AttemptId) -> Vec<CallInFlight> + Send + Sync + 'static,
    ) -> Self {
        Self { calls: Some(RunCalls(Arc::new(calls))), ..self }
    }

    /// Returns the model calls that an attempt has under way, the oldest first.
    pub(crate) fn calls(&self, attempt: AttemptId) -> Vec<CallInFlight> {
        self.calls.as_ref().map_or_else(Vec::new, |calls| calls.0(attempt))
    }

    /// Returns what a life of a runner says about itself. What it was at is left out if that was
    /// in another attempt.
    pub(crate) fn record_report(
        &self,
        runner: RunnerId,
        life: Incarnation,
        attempt: Option<AttemptId>,
    ) -> BTreeMap<String, String> {
        let states = self.states.lock();
        let mut said = BTreeMap::new();
        if let Some(told) = states.told.get(&runner).filter(|told| told.life == life) {
            said = told.state.clone();
            if told.attempt != attempt {
                NOW.iter().for_each(|name| drop(said.remove(*name)));
            }
        }
        let stages = states.stages.get(&runner).filter(|(current, _)| *current == life);
        if let Some((run, stage, since)) = stages.and_then(|(_, stages)| stages.oldest()) {
            let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            said.insert("run".to_owned(), run.0.to_string());
            said.insert("stage".to_owned(), stage.to_string());
            said.insert("stage_since".to_owned(), since.to_string());
        }
        if let Some((_, known)) = states.known.get(&runner).filter(|(known, _)| *known == life) {
            let texts = [("node", &known.place), ("waiting", &known.waits)];
            let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?)));
            said.extend(texts.map(|(name, text)| (name.to_owned(), text)));
        }
        said
    }

    /// Records the location of a runner's incarnation, or the reason why it has none yet.
    pub(crate) fn locate(&self, runner: RunnerId, life: Incarnation, known: &LaunchState) {
        let mut states = self.states.lock();
        let observers = states.observers.clone();
        let before = states.known.insert(runner, (life, known.clone()));
        drop(states);
        let Some(place) = known.place.as_deref().filter(|_| !observers.is_empty()) else { return };
        if !before.is_some_and(|(was, known)| was == life && known.place.as_deref() == Some(place))
        {
            let what = RunEventKind::RunnerLocated { runner, life, place: place.into() };
            observers.emit(&[RunEvent { at: events::now(), what }]);
        }
    }

    /// Has these told where runners are from now on.
    pub(crate) fn observed(&self, observers: &RunObservers) {
        self.states.lock().observers = observers.clone();
    }

    /// A life of a runner is nowhere any more.
    pub(crate) fn forget(&self, runner: RunnerId, life: Incarnation) {
        let mut states = self.states.lock();
        if states.known.get(&runner).is_some_and(|(current, _)| *current == life) {
            states.known.remove(&runner);
        }
    }
}
