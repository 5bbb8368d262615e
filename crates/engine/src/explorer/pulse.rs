//! Live numbers of an explorer, for whoever draws them several times a second.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollway_core::{BatchId, Counters, RunId, RunnerState, TaskId};
use rollway_gateway::gateway::Handle;

use super::open::World;
use crate::coordinator::RolloutCoordinator;
use crate::states::RunnerStatus;

/// Live numbers. Clones are the same; they outlive the explorer, and stand still then.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// None once the explorer is gone: a pulse keeps nothing alive.
    source: Option<(RolloutCoordinator, Handle)>,
    last: Beat,
}

/// The numbers of a moment, since the process was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Runs that wait for a runner.
    pub pending: u64,
    /// Runs under way.
    pub running: u64,
    /// Runs that ended well.
    pub done: u64,
    /// Runs that failed for good.
    pub failed: u64,
    /// Runs that were cancelled.
    pub cancelled: u64,
    /// Runs that were tried again.
    pub retried: u64,
    /// Runners that are up.
    pub runners: u32,
    /// Runners that execute something.
    pub busy: u32,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all answers.
    pub answer_tokens: u64,
}

impl Pulse {
    pub(super) fn new(world: &World) -> Self {
        let source = world.gateway.as_ref().map(|it| (world.coordinator.clone(), it.handle()));
        Self(Arc::new(Mutex::new(Inner { source, last: Beat::default() })))
    }

    /// Returns the numbers of now; of an explorer that is gone, those of its end.
    pub async fn beat(&self) -> Beat {
        let Some((coordinator, gateway)) = self.lock().source.clone() else {
            return self.lock().last;
        };
        let Ok((counters, states)) = coordinator.at_a_glance().await else {
            return self.lock().last;
        };
        let tokens = gateway.tokens();
        let beat = Beat {
            prompt_tokens: tokens.prompt,
            answer_tokens: tokens.answer,
            ..Beat::of(&counters, &states)
        };
        self.lock().last = beat;
        beat
    }

    /// Returns every runner with what it does now, those that are stuck first; of an explorer that
    /// is gone, none.
    pub async fn runners(&self) -> Vec<RunnerStatus> {
        match self.coordinator() {
            Some(coordinator) => coordinator.runner_states().await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Cancels one run; tells whether there was one to cancel.
    pub async fn cancel_run(&self, batch: BatchId, task: TaskId, run: RunId, why: &str) -> bool {
        match self.coordinator() {
            Some(coordinator) => {
                coordinator.cancel_run(batch, task, run, why).await.unwrap_or(false)
            }
            None => false,
        }
    }

    /// Tells whether there is an explorer behind these numbers.
    pub(crate) fn is_live(&self) -> bool {
        self.lock().source.is_some()
    }

    /// Returns what runs are asked of; none: the explorer is gone.
    pub(crate) fn coordinator(&self) -> Option<RolloutCoordinator> {
        self.lock().source.as_ref().map(|(coordinator, _)| coordinator.clone())
    }

    /// Lets go of the explorer, whose end these numbers are then.
    pub(super) async fn freeze(&self) {
        self.beat().await;
        self.let_go();
    }

    pub(super) fn let_go(&self) {
        let source = self.lock().source.take();
        drop(source);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    fn of(counters: &Counters, states: &[RunnerState]) -> Self {
        let is_up = |state: &RunnerState| match state {
            RunnerState::Idle | RunnerState::Busy(_) | RunnerState::Cancelling(_) => true,
            RunnerState::Starting | RunnerState::Broken | RunnerState::Gone => false,
        };
        let is_busy = |state: &RunnerState| matches!(state, RunnerState::Busy(_));
        let count = |is: &dyn Fn(&RunnerState) -> bool| {
            u32::try_from(states.iter().filter(|state| is(state)).count()).unwrap_or(u32::MAX)
        };
        let runs = &counters.runs;
        Self {
            pending: runs.pending,
            running: runs.running,
            done: runs.succeeded,
            failed: runs.failed.total(),
            cancelled: runs.cancelled.total(),
            retried: counters.retries.total(),
            runners: count(&is_up),
            busy: count(&is_busy),
            ..Self::default()
        }
    }
}
