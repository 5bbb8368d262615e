//! The explorer's loop as decisions: which step is begun, finalized, evaluated and when weights are
//! exchanged. Whoever acts reports what happened as a [`PlanInput`] and gets [`PlanAction`]s; start
//! with [`Plan`].
//!
//! ```text
//!            ┌────────────────────── one period ───────────────────────┐
//! explorer   │ Begin 1 … Begin n, Evaluate n │ Finalize 1 … Finalize n │
//!            │                               │      FinishEval n       │ Sync │ …
//! ```
//!
//! With `fully_async` there are no periods: a window of steps is in flight, weights are taken as
//! they come, and a step is begun only if its experiences will not be too old when trained on.
//!
//! Whatever the style, an evaluation is of one version: while one is under way, no order changes
//! the weights, and while weights change, no evaluation is begun.

mod plan;
mod plan_config;
mod progress;

pub use self::plan::Plan;
pub use self::plan_config::{PlanConfig, PlanStyle};
pub use self::progress::PlanProgress;

/// What happened. Orders are answered by facts; the others come of themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanInput {
    /// A step's tasks were submitted. Answers [`PlanAction::BeginStep`].
    Begun(u64),
    /// There are no more tasks. Answers [`PlanAction::BeginStep`] too, and may come of itself.
    Exhausted,
    /// A step was finalized. Answers [`PlanAction::FinalizeStep`].
    Finalized {
        step: u64,
        /// How many experiences it delivered.
        delivered: u64,
    },
    /// The evaluations of a step were submitted. Answers [`PlanAction::Evaluate`].
    EvalBegun(u64),
    /// The evaluations of a step were finished. Answers [`PlanAction::FinishEval`].
    EvalFinished(u64),
    /// The exchange that was ordered is over. Answers [`PlanAction::Sync`] and
    /// [`PlanAction::FinishTraining`].
    Synced(SyncResult),
    /// Weights of this version were published. Of interest with [`PlanStyle::FullyAsync`] alone,
    /// where an [`PlanAction::Load`] follows as soon as no evaluation is under way.
    Published(u64),
    /// The servers have weights of this version. Answers [`PlanAction::Load`], and comes of itself
    /// when a restarted explorer could not put `Progress::version` back into its servers but only a
    /// newer one. Without newer weights after all, tell the version that the servers have.
    Loaded(u64),
    /// Other explorers of the job have submitted so many experiences in all. They count for the
    /// staleness, since the trainer trains on them too.
    OthersSubmitted(u64),
    /// The trainer is done, as it said without being asked: nothing new is begun, and the job
    /// comes to its end.
    TrainerDone,
    /// Somebody wants the process to end: there are no more orders. What is waited for (finalize,
    /// evaluations, exchanges) may be abandoned; what is being submitted may not.
    Stopped,
}

/// What came of an exchange. That a trainer failed, or a wait timed out, is no fact but the end of
/// the process; a restart goes on from [`Plan::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncResult {
    /// The servers have weights of this version.
    Version(u64),
    /// The trainer has nothing newer, and will not have until it gets more experiences.
    NothingNew,
    /// The trainer is done; this was its last version, which the servers have.
    TrainerDone(u64),
}

/// What is to be done. At most one order of each kind is unanswered; different kinds are carried
/// out side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanAction {
    /// Draw the tasks of a step and submit them. After a crash it can be given for a step whose
    /// tasks are submitted already, if [`PlanInput::Begun`] was not kept; so can
    /// [`PlanAction::Evaluate`].
    BeginStep(u64),
    /// Wait for a step and finalize it. Given for one step at a time, in order.
    FinalizeStep(u64),
    /// Submit the evaluations of a step; of step 0 before anything else. Behind the last exchange
    /// it is the final evaluation: of the last step, or of the one after it if the last one was
    /// evaluated with older weights already, because nobody knew that it was the last.
    Evaluate(u64),
    /// Wait for the evaluations of a step.
    FinishEval(u64),
    /// Exchange weights after a step: wait for newer ones, with a deadline, and load them. With
    /// [`PlanStyle::ExplorerDriven`] and [`PlanStyle::FullyAsync`] the trainer is asked to publish.
    /// With the latter it is given only if the next step would be too stale and nothing is in
    /// flight.
    Sync {
        /// The last finalized step.
        step: u64,
        /// The version that the trainer can be expected to reach with what it got. Older ones are
        /// waited beyond.
        at_least: u64,
    },
    /// Load the newest published weights, with [`PlanStyle::FullyAsync`]. No evaluation is under
    /// way, and none is begun until [`PlanInput::Loaded`].
    Load,
    /// All experiences are delivered: tell the trainer that no more come, wait for its last
    /// weights, and load them. Answered by [`PlanInput::Synced`]; at once if the trainer is done.
    FinishTraining,
    /// Everything is done. It has no answer.
    End,
}
