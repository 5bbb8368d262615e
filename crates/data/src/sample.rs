//! Experiences as buffers hold them: bytes, and what is asked of them without decoding.

use std::sync::Arc;

use bytes::Bytes;
use rollway_experience::{Experience, PayloadError, deserialize, serialize};

/// One experience in a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The whole name of the experience (`Eid::uid`); no buffer holds a name twice.
    pub id: Arc<str>,
    /// The oldest version of the model that produced a part of it; 0 if nobody said.
    pub model_version: u64,
    /// Its reward, if it was judged.
    pub reward: Option<f64>,
    /// A payload of exactly this experience.
    pub payload: Bytes,
}

impl Sample {
    /// Encodes an experience.
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

/// Samples that are written together: whole, or not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteBatch {
    /// What it is called. The same lot written again, also after a crash, has the same key and no
    /// further effect.
    pub key: Arc<str>,
    pub samples: Vec<Sample>,
}

/// Returns the oldest version that produced a part of an experience.
pub fn model_version(experience: &Experience) -> u64 {
    let recorded = experience.model_versions.as_ref().and_then(|versions| versions.oldest());
    let stamped = || experience.info.get("model_version").and_then(|value| value.as_u64());
    recorded.or_else(stamped).unwrap_or(0)
}
