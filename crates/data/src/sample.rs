//! Encoded experiences with the fields that buffers need.

use std::sync::Arc;

use bytes::Bytes;
use rollway_experience::{Experience, PayloadError, deserialize, serialize};

/// One experience in a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Full id of the experience (`Eid::uid`), unique in a buffer.
    pub id: Arc<str>,
    /// Oldest model version that produced a part of it; 0 if unknown.
    pub model_version: u64,
    pub reward: Option<f64>,
    /// Payload of exactly this experience.
    pub payload: Bytes,
}

impl Sample {
    pub fn new(experience: &Experience) -> Result<Self, PayloadError> {
        Ok(Self {
            id: experience.eid.uid().into(),
            model_version: model_version(experience),
            reward: experience.reward,
            payload: serialize(experience)?,
        })
    }

    /// Decodes the experience; its arrays are slices of the payload.
    pub fn decode(&self) -> Result<Experience, PayloadError> {
        deserialize(self.payload.clone())
    }
}

/// Samples that are written atomically.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteBatch {
    /// Idempotency key: writing the same batch again, also after a crash, has no further effect.
    pub key: Arc<str>,
    pub samples: Vec<Sample>,
}

/// Returns the oldest model version that produced a part of an experience; 0 if unknown.
pub fn model_version(experience: &Experience) -> u64 {
    let recorded = experience.model_versions.as_ref().and_then(|versions| versions.oldest());
    let stamped = || experience.info.get("model_version").and_then(|value| value.as_u64());
    recorded.or_else(stamped).unwrap_or(0)
}
