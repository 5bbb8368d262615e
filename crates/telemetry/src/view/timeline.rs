//! Steps, evaluations, exchanges of weights and training, in time.

use serde::{Deserialize, Serialize};

use super::UnixSeconds;

/// What a job did when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// When this was said.
    pub now: UnixSeconds,
    /// One lane for each sort: `steps`, `evals`, `syncs`, `training`.
    pub lanes: Vec<TimelineLane>,
}

/// Spans of one sort.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineLane {
    /// Which sort.
    pub name: String,
    /// The spans, by when they began.
    pub spans: Vec<TimelineSpan>,
}

/// Something that took its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineSpan {
    /// Names it in its lane.
    pub id: String,
    /// What to call it.
    pub name: String,
    /// The step that it belongs to.
    pub step: u64,
    /// When it began.
    pub begin: UnixSeconds,
    /// When it ended; none: it is under way.
    pub end: Option<UnixSeconds>,
    /// How it stands: `running`, `done`, `failed`, `cut`.
    pub state: String,
    /// More about it, in words.
    pub detail: String,
}
