//! Encoding of lines.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rollway_experience::PayloadError;
use serde::Deserialize;
use serde_json::Value;

use crate::buffer::BufferError;
use crate::{Sample, model_version};

const PAYLOAD: &str = "payload";

#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{PAYLOAD}: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("{PAYLOAD}: {0}")]
    Payload(#[from] PayloadError),
    #[error(
        "there is no `{PAYLOAD}`: the line was written without its arrays and can only be \
         displayed"
    )]
    NoPayload,
}

impl LineError {
    /// Adds the location.
    pub(super) fn with_location(&self, storage: &str, location: &str) -> BufferError {
        let (storage, message) = (storage.to_owned(), format!("{location}: {self}"));
        match self {
            Self::NoPayload => BufferError::unsupported(storage, message),
            _ => BufferError::damaged(storage, message),
        }
    }
}

pub(super) fn write(sample: &Sample, out: &mut Vec<u8>) -> Result<(), PayloadError> {
    let text = sample.decode()?.to_json().to_string();
    // Appended as text, which avoids a copy of a long string.
    out.extend_from_slice(text.strip_suffix('}').unwrap_or(&text).as_bytes());
    out.extend_from_slice(b",\"payload\":\"");
    let begin = out.len();
    let room = base64::encoded_len(sample.payload.len(), true).unwrap_or_default();
    out.resize(begin + room, 0);
    let written = STANDARD.encode_slice(&sample.payload, &mut out[begin..]);
    out.truncate(begin + written.unwrap_or_default());
    out.extend_from_slice(b"\"}\n");
    Ok(())
}

pub(super) fn read(line: &[u8]) -> Result<Sample, LineError> {
    #[derive(Deserialize)]
    struct JsonlLine<'a> {
        #[serde(borrow)]
        payload: Option<Cow<'a, str>>,
    }
    let line: JsonlLine<'_> = serde_json::from_slice(line)?;
    let text = line.payload.ok_or(LineError::NoPayload)?;
    let payload = STANDARD.decode(text.as_bytes())?.into();
    let mut sample = Sample { id: Arc::from(""), model_version: 0, reward: None, payload };
    let experience = sample.decode()?;
    sample.id = experience.eid.uid().into();
    sample.model_version = model_version(&experience);
    sample.reward = experience.reward;
    Ok(sample)
}

/// Returns the sample id of a line.
pub(super) fn id(line: &[u8]) -> Result<String, LineError> {
    #[derive(Deserialize)]
    struct Line {
        eid: EidJson,
    }
    #[derive(Deserialize)]
    struct EidJson {
        batch: Value,
        task: Value,
        run: u64,
        step: u64,
        suffix: String,
    }
    let EidJson { batch, task, run, step, suffix } = serde_json::from_slice::<Line>(line)?.eid;
    let part = |part: &Value| part.as_str().map_or_else(|| part.to_string(), str::to_owned);
    Ok(format!("{}/{}/{run}/{step}/{suffix}", part(&batch), part(&task)))
}
