//! Encoding of experiences as a payload.

use bytes::Bytes;
use prost::Message;

use super::items::ITEM_KEY;
use super::{ALIGNMENT, PayloadError, PayloadHeader, proto};
use crate::{
    Array, CustomField, Dtype, Eid, Element, Experience, ExperienceFields, ExperienceKind, IdPart,
    Json, ModelVersions, TruncateStatus,
};

/// Encodes any number of experiences.
///
/// Fails if a changed experience breaks a rule, or if a limit of the format is exceeded.
pub fn serialize_many(experiences: &[Experience]) -> Result<Bytes, PayloadError> {
    let mut header = PayloadHeader { minor: PayloadHeader::MINOR, ..PayloadHeader::default() };
    let mut parts = Vec::with_capacity(experiences.len());
    for (number, experience) in experiences.iter().enumerate() {
        experience.check().map_err(|error| PayloadError::Field { item: number, error })?;
        let mut data = DataSection::default();
        let item = item(experience, &mut data);
        let length = item.encoded_len();
        let length = (1 + prost::length_delimiter_len(length) + length) as u64;
        // Saturating: a sum beyond the limits must not wrap around.
        header.data_bytes = header.data_bytes.saturating_add(data.bytes);
        header.metadata_bytes = header.metadata_bytes.saturating_add(length);
        parts.push((item, data.arrays));
    }
    header.items = parts.len() as u64;
    header.check_limits()?;

    // Within the limits this fits `usize`, because the arrays are in memory already.
    let mut out = Vec::with_capacity(header.payload_bytes() as usize);
    out.resize(PayloadHeader::BYTES, 0);
    let mut data_checksum = crc32fast::Hasher::new();
    for (_, arrays) in &parts {
        let begin = out.len();
        for array in arrays {
            out.extend_from_slice(array);
            // The size of the header is a multiple of the alignment too.
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
        // While it is still in the cache.
        data_checksum.update(&out[begin..]);
    }
    let begin = out.len();
    for (item, _) in &parts {
        out.push(ITEM_KEY);
        let written = item.encode_length_delimited(&mut out);
        debug_assert!(written.is_ok(), "a vector grows as needed");
    }
    debug_assert_eq!(out.len() as u64, header.payload_bytes());
    header.data_checksum = data_checksum.finalize();
    header.metadata_checksum = crc32fast::hash(&out[begin..]);
    out[..PayloadHeader::BYTES].copy_from_slice(&header.write());
    Ok(out.into())
}

/// Arrays of one experience, in the order of the data section.
#[derive(Default)]
struct DataSection<'a> {
    arrays: Vec<&'a Bytes>,
    bytes: u64,
}

impl<'a> DataSection<'a> {
    fn add(&mut self, dtype: Dtype, shape: &[usize], data: &'a Bytes) -> proto::Array {
        let offset = self.bytes;
        self.arrays.push(data);
        let size = (data.len() as u64).next_multiple_of(ALIGNMENT as u64);
        self.bytes = self.bytes.saturating_add(size);
        let shape = shape.iter().map(|&size| size as u64).collect();
        proto::Array { dtype: dtype as i32, shape, offset }
    }

    fn array<T: Element>(&mut self, array: &'a Option<Array<T>>) -> Option<proto::Array> {
        let array = array.as_ref()?;
        Some(self.add(T::DTYPE, &[array.len()], array.bytes()))
    }
}

fn item<'a>(experience: &'a Experience, data: &mut DataSection<'a>) -> proto::Item {
    let it: &ExperienceFields = experience;
    let mut item = proto::Item {
        eid: Some(proto_eid(&it.eid)),
        kind: proto_kind(experience.kind()).into(),
        data_bytes: 0,
        prompt_length: it.prompt_length as u64,
        tokens: Some(data.add(i32::DTYPE, &[it.tokens.len()], it.tokens.bytes())),
        logprobs: data.array(&it.logprobs),
        action_mask: data.array(&it.action_mask),
        reward: it.reward,
        info: if it.info == Json::object() { Bytes::new() } else { it.info.bytes().clone() },
        metrics: it.metrics.clone(),
        truncate_status: proto_truncate_status(it.truncate_status).into(),
        model_versions: it.model_versions.as_ref().map(proto_model_versions),
        prompt_text: it.prompt_text.clone(),
        response_text: it.response_text.clone(),
        messages: text(&it.messages),
        tools: text(&it.tools),
        chosen_messages: text(&it.chosen_messages),
        rejected_messages: text(&it.rejected_messages),
        token_level_reward: data.array(&it.token_level_reward),
        advantages: data.array(&it.advantages),
        returns: data.array(&it.returns),
        teacher_logprobs: data.array(&it.teacher_logprobs),
        chosen: data.array(&it.chosen),
        rejected: data.array(&it.rejected),
        multi_modal_inputs: it
            .multi_modal_inputs
            .iter()
            .map(|(name, it)| (name.clone(), data.add(it.dtype(), it.shape(), it.data())))
            .collect(),
        custom_fields: it.custom_fields.iter().map(proto_custom_field).collect(),
    };
    item.data_bytes = data.bytes;
    item
}

fn text(json: &Option<Json>) -> Option<Bytes> {
    json.as_ref().map(|json| json.bytes().clone())
}

fn proto_eid(eid: &Eid) -> proto::Eid {
    use proto::eid::{Batch, Task};

    let Eid { batch, task, run, step, suffix } = eid;
    proto::Eid {
        batch: Some(match batch {
            IdPart::Number(number) => Batch::BatchNumber(*number),
            IdPart::Text(text) => Batch::BatchText(text.clone()),
        }),
        task: Some(match task {
            IdPart::Number(number) => Task::TaskNumber(*number),
            IdPart::Text(text) => Task::TaskText(text.clone()),
        }),
        run: *run,
        step: *step,
        suffix: suffix.clone(),
    }
}

fn proto_model_versions(versions: &ModelVersions) -> proto::ModelVersions {
    let runs = versions.spans();
    proto::ModelVersions {
        tokens: runs.iter().map(|run| run.tokens).collect(),
        // No version is above `i64::MAX`: invariant of the type.
        versions: runs.iter().map(|run| run.version.map_or(-1, |version| version as i64)).collect(),
    }
}

fn proto_custom_field(field: &CustomField) -> proto::CustomField {
    let CustomField { source_field, destination_field, dtype } = field;
    proto::CustomField {
        source_field: source_field.clone(),
        destination_field: destination_field.clone(),
        dtype: *dtype as i32,
    }
}

fn proto_kind(kind: ExperienceKind) -> proto::Kind {
    match kind {
        ExperienceKind::SingleTurn => proto::Kind::SingleTurn,
        ExperienceKind::MultiTurn => proto::Kind::MultiTurn,
        ExperienceKind::Dpo => proto::Kind::Dpo,
    }
}

fn proto_truncate_status(status: Option<TruncateStatus>) -> proto::TruncateStatus {
    match status {
        None => proto::TruncateStatus::None,
        Some(TruncateStatus::PromptTruncated) => proto::TruncateStatus::PromptTruncated,
        Some(TruncateStatus::ResponseTruncated) => proto::TruncateStatus::ResponseTruncated,
    }
}
