//! The explorer's loop as decisions: order of steps, evaluations and weight syncs. The driver
//! reports events as [`PlanInput`]s and performs [`PlanAction`]s; start with [`Plan`].
//!
//! ```text
//!            ┌────────────────────── one period ───────────────────────┐
//! explorer   │ Begin 1 … Begin n, Evaluate n │ Finalize 1 … Finalize n │
//!            │                               │      FinishEval n       │ Sync │ …
//! ```
//!
//! With `fully_async` there are no periods: a window of steps is in flight, new weights are loaded
//! as they are published, and a step begins only if its experiences will not be too stale.
//!
//! No evaluation begins during a change of weights. With [`PlanConfig::eval_single_version`] no
//! action changes the weights during an evaluation either; otherwise the weights do not wait for
//! evaluations, and their runs may use several versions.

mod plan;
mod plan_config;
mod progress;

pub use self::plan::Plan;
pub use self::plan_config::{PlanConfig, PlanStyle};
pub use self::progress::PlanProgress;

/// Event for the plan: the result of a [`PlanAction`], or a change from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanInput {
    /// A step's tasks were submitted. Result of [`PlanAction::BeginStep`].
    Begun(u64),
    /// There are no more tasks. Result of [`PlanAction::BeginStep`], or unsolicited.
    Exhausted,
    /// A step was finalized with so many experiences. Result of [`PlanAction::FinalizeStep`].
    Finalized { step: u64, delivered: u64 },
    /// The evaluations of a step were submitted. Result of [`PlanAction::Evaluate`].
    EvalBegun(u64),
    /// The evaluations of a step were finished. Result of [`PlanAction::FinishEval`].
    EvalFinished(u64),
    /// The weight sync is over. Result of [`PlanAction::Sync`] and [`PlanAction::FinishTraining`].
    Synced(SyncResult),
    /// Weights of this version were published. Used by [`PlanStyle::FullyAsync`] only: a
    /// [`PlanAction::Load`] follows as soon as weights may change.
    Published(u64),
    /// The servers have weights of this version. Result of [`PlanAction::Load`]. Unsolicited if a
    /// restarted explorer could not restore `Progress::version` but only a newer version. If
    /// nothing newer was available, this is the version that the servers have.
    Loaded(u64),
    /// Total experiences submitted by the other explorers of the job. They count for the staleness,
    /// since the trainer trains on them too.
    OthersSubmitted(u64),
    /// The trainer is done, unsolicited: no new step begins, and the job ends.
    TrainerDone,
    /// The process must end: no more actions. Waits (finalize, evaluations, weight syncs) may be
    /// abandoned; submissions may not.
    Stopped,
}

/// Result of a weight sync. A failed trainer or a timeout is no result: the process ends, and a
/// restart continues from [`Plan::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncResult {
    /// The servers have weights of this version.
    Version(u64),
    /// The trainer has nothing newer until it gets more experiences.
    NothingNew,
    /// The trainer is done; the servers have this last version.
    TrainerDone(u64),
}

/// Action of the plan. At most one action of each kind is open; different kinds run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanAction {
    /// Draw the tasks of a step and submit them. After a crash it can be repeated for a step whose
    /// tasks are submitted already, if [`PlanInput::Begun`] was not saved; so can
    /// [`PlanAction::Evaluate`].
    BeginStep(u64),
    /// Wait for a step and finalize it. Emitted for one step at a time, in order.
    FinalizeStep(u64),
    /// Submit the evaluations of a step; of step 0 before anything else. After the last weight sync
    /// it is the final evaluation: of the last step, or of the step after it if the last step was
    /// evaluated with older weights already.
    Evaluate(u64),
    /// Wait for the evaluations of a step.
    FinishEval(u64),
    /// Sync weights after the last finalized step: wait for newer ones, with a deadline, and load
    /// them. `at_least` is the version that the trainer is expected to reach; older ones do not end
    /// the wait. With [`PlanStyle::ExplorerDriven`] and [`PlanStyle::FullyAsync`] the explorer
    /// requests a publication. With the latter it is emitted only if the next step would be too
    /// stale and nothing is in flight.
    Sync { step: u64, at_least: u64 },
    /// Load the newest published weights, with [`PlanStyle::FullyAsync`]. No evaluation begins
    /// until [`PlanInput::Loaded`].
    Load,
    /// All experiences are delivered: inform the trainer, wait for its last weights, and load them.
    /// Answered by [`PlanInput::Synced`]; at once if the trainer is done.
    FinishTraining,
    /// The job is complete. It has no result.
    End,
}
