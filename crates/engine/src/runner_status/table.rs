//! States that runners report about themselves, and their locations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rollway_core::{AttemptId, Incarnation, RunId, RunnerId};
use rollway_gateway::gateway::CallInFlight;

use crate::events::{self, RunEvent, RunEventKind, RunObservers};
use crate::job_wait::WaitReason;

/// Labels that belong to the current attempt.
const ATTEMPT_LABELS: [&str; 4] = ["stage", "stage_since", "place", "run"];

/// Maximum length of a stage, in bytes.
const MAX_STAGE: usize = 200;

type Labels = BTreeMap<String, String>;

/// A stage and its start.
type Stage = (Arc<str>, SystemTime);

/// Last labels of every runner, with `node` (location) and `waiting` (reason for not being
/// started). Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct RunnerStatusTable {
    states: Arc<Mutex<States>>,
    calls: Option<RunCalls>,
    servers: Option<ServerWait>,
}

/// Finds the model calls of an attempt in flight.
#[derive(Clone)]
struct RunCalls(Arc<dyn Fn(AttemptId) -> Vec<CallInFlight> + Send + Sync>);

impl fmt::Debug for RunCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunCalls")
    }
}

/// Finds the wait of model calls for a usable server.
#[derive(Clone)]
struct ServerWait(Arc<dyn Fn() -> Option<WaitReason> + Send + Sync>);

impl fmt::Debug for ServerWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerWait")
    }
}

/// Location of a worker that has not completed its handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchState {
    /// Host and process id.
    pub(crate) location: Option<String>,
    /// Reason for which the worker cannot be started yet.
    pub(crate) waits: Option<String>,
}

#[derive(Debug, Default)]
struct States {
    /// Attempt and labels of the last heartbeat.
    heartbeats: BTreeMap<RunnerId, (Incarnation, Option<AttemptId>, Labels)>,
    /// Of local runners.
    stages: BTreeMap<RunnerId, (Incarnation, RunStages)>,
    launches: BTreeMap<RunnerId, (Incarnation, LaunchState)>,
    observers: RunObservers,
}

impl RunnerStatusTable {
    /// Stores the labels of a heartbeat.
    pub(crate) fn set_labels(
        &self,
        (runner, incarnation): (RunnerId, Incarnation),
        attempt: Option<AttemptId>,
        labels: Labels,
    ) {
        self.states.lock().heartbeats.insert(runner, (incarnation, attempt, labels));
    }

    /// Returns the stages of an incarnation of a local runner.
    pub(crate) fn stages(&self, runner: RunnerId, incarnation: Incarnation) -> RunStages {
        let stages = RunStages::default();
        self.states.lock().stages.insert(runner, (incarnation, stages.clone()));
        stages
    }

    /// Adds a lookup of model calls in flight.
    #[must_use]
    pub(crate) fn with_calls(
        self,
        calls: impl Fn(AttemptId) -> Vec<CallInFlight> + Send + Sync + 'static,
    ) -> Self {
        Self { calls: Some(RunCalls(Arc::new(calls))), ..self }
    }

    /// Adds a lookup of the wait of model calls for a usable server.
    #[must_use]
    pub(crate) fn with_server_wait(
        self,
        wait: impl Fn() -> Option<WaitReason> + Send + Sync + 'static,
    ) -> Self {
        Self { servers: Some(ServerWait(Arc::new(wait))), ..self }
    }

    /// Returns the wait of model calls for a usable server, if they wait for one.
    pub(crate) fn server_wait(&self) -> Option<WaitReason> {
        self.servers.as_ref().and_then(|servers| servers.0())
    }

    /// Returns the model calls of an attempt in flight, oldest first.
    pub(crate) fn calls(&self, attempt: AttemptId) -> Vec<CallInFlight> {
        self.calls.as_ref().map_or_else(Vec::new, |calls| calls.0(attempt))
    }

    /// Returns the labels of an incarnation, without those of an earlier attempt.
    pub(crate) fn labels(
        &self,
        runner: RunnerId,
        incarnation: Incarnation,
        attempt: Option<AttemptId>,
    ) -> Labels {
        let states = self.states.lock();
        let mut labels = BTreeMap::new();
        if let Some((_, current, last)) =
            states.heartbeats.get(&runner).filter(|it| it.0 == incarnation)
        {
            labels = last.clone();
            if *current != attempt {
                ATTEMPT_LABELS.iter().for_each(|name| drop(labels.remove(*name)));
            }
        }
        let mut set = |name: &str, value: String| labels.insert(name.to_owned(), value);
        let stages = states.stages.get(&runner).filter(|(current, _)| *current == incarnation);
        if let Some((run, stage, since)) = stages.and_then(|(_, stages)| stages.oldest()) {
            let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            set("run", run.0.to_string());
            set("stage", stage.to_string());
            set("stage_since", since.to_string());
        }
        if let Some((_, launch)) = states.launches.get(&runner).filter(|it| it.0 == incarnation) {
            launch.location.iter().for_each(|location| drop(set("node", location.clone())));
            launch.waits.iter().for_each(|reason| drop(set("waiting", reason.clone())));
        }
        labels
    }

    /// Records the location of a runner's incarnation, or the reason why it has none yet.
    pub(crate) fn locate(&self, runner: RunnerId, incarnation: Incarnation, launch: &LaunchState) {
        let mut states = self.states.lock();
        let observers = states.observers.clone();
        let before = states.launches.insert(runner, (incarnation, launch.clone()));
        drop(states);
        let Some(location) = launch.location.as_deref().filter(|_| !observers.is_empty()) else {
            return;
        };
        if !before
            .is_some_and(|(was, it)| was == incarnation && it.location.as_deref() == Some(location))
        {
            let what =
                RunEventKind::RunnerLocated { runner, incarnation, location: location.into() };
            observers.emit(&[RunEvent { at: events::now(), what }]);
        }
    }

    /// Sends later locations to the observers.
    pub(crate) fn observed(&self, observers: &RunObservers) {
        self.states.lock().observers = observers.clone();
    }

    /// Removes the location of an incarnation that has ended.
    pub(crate) fn remove_location(&self, runner: RunnerId, incarnation: Incarnation) {
        let mut states = self.states.lock();
        if states.launches.get(&runner).is_some_and(|(current, _)| *current == incarnation) {
            states.launches.remove(&runner);
        }
    }
}

/// Stages of the current runs of a runner. Cheap to clone; clones share state.
#[derive(Clone, Debug, Default)]
pub struct RunStages(Arc<Mutex<BTreeMap<RunId, Stage>>>);

impl RunStages {
    pub fn set(&self, run: RunId, stage: &str) {
        let stage = Arc::from(&stage[..stage.floor_char_boundary(MAX_STAGE)]);
        self.0.lock().insert(run, (stage, SystemTime::now()));
    }

    pub(crate) fn end(&self, run: RunId) {
        self.0.lock().remove(&run);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Returns the run that has been longest in its stage.
    fn oldest(&self) -> Option<(RunId, Arc<str>, SystemTime)> {
        let stages = self.0.lock();
        let oldest = stages.iter().min_by_key(|(_, (_, since))| *since);
        oldest.map(|(run, (stage, since))| (*run, Arc::clone(stage), *since))
    }
}
