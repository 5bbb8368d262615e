//! Timeline of steps, evaluations, weight syncs and training.

use serde::{Deserialize, Serialize};

use super::UnixSeconds;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// Time of this response.
    pub now: UnixSeconds,
    /// `steps`, `evals`, `syncs`, `training`.
    pub lanes: Vec<TimelineLane>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineLane {
    pub name: String,
    /// Ordered by begin.
    pub spans: Vec<TimelineSpan>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineSpan {
    /// Unique in its lane.
    pub id: String,
    /// Title.
    pub name: String,
    pub step: u64,
    pub begin: UnixSeconds,
    /// `None`: not ended.
    pub end: Option<UnixSeconds>,
    /// `running`, `done`, `failed`, `interrupted`.
    pub state: String,
    pub detail: String,
}
