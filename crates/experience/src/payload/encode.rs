//! Experiences become a payload.

use bytes::Bytes;
use prost::Message;

use super::items::ITEM_KEY;
use super::{ALIGNMENT, PayloadError, PayloadHeader, proto};
use crate::{
    Array, CustomField, Dtype, Eid, Element, Experience, ExperienceFields, ExperienceKind, IdPart,
    Json, ModelVersions, Tensor, TruncateStatus,
};

/// Makes a payload of any number of experiences.
///
/// Fails if one of them was changed so that it breaks a rule, or if they exceed a limit.
pub fn serialize_many(experiences: &[Experience]) -> Result<Bytes, PayloadError> {
    let mut parts = Vec::with_capacity(experiences.len());
    for (item, experience) in experiences.iter().enumerate() {
        experience.check().map_err(|error| PayloadError::Field { item, error })?;
        parts.push(Part::new(experience));
    }
    let mut header = PayloadHeader {
        minor: PayloadHeader::MINOR,
        items: parts.len() as u64,
        data_bytes: sum(parts.iter().map(Part::data_bytes)),
        metadata_bytes: sum(parts.iter().map(Part::metadata_bytes)),
        data_checksum: 0,
        metadata_checksum: 0,
    };
    header.check_limits()?;

    // Within the limits this fits, or there would not have been room for the arrays either.
    let mut out = Vec::with_capacity(header.payload_bytes() as usize);
    out.resize(PayloadHeader::BYTES, 0);
    let mut data_checksum = crc32fast::Hasher::new();
    for part in &parts {
        let begin = out.len();
        part.write_data(&mut out);
        // While it is still in the cache.
        data_checksum.update(&out[begin..]);
    }
    let begin = out.len();
    for part in &parts {
        part.write_metadata(&mut out);
    }
    debug_assert_eq!(out.len() as u64, header.payload_bytes());
    header.data_checksum = data_checksum.finalize();
    header.metadata_checksum = crc32fast::hash(&out[begin..]);
    out[..PayloadHeader::BYTES].copy_from_slice(&header.write());
    Ok(out.into())
}

/// Adds without wrapping around: a sum beyond all limits stays beyond them.
fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// What one experience adds to the payload.
struct Part<'a> {
    item: proto::Item,
    arrays: Vec<&'a Bytes>,
}

impl<'a> Part<'a> {
    fn new(experience: &'a Experience) -> Self {
        let mut data = Data::default();
        let item = item(experience.kind(), experience, &mut data);
        Self { item, arrays: data.arrays }
    }

    fn data_bytes(&self) -> u64 {
        self.item.data_bytes
    }

    fn metadata_bytes(&self) -> u64 {
        let length = self.item.encoded_len();
        (1 + prost::length_delimiter_len(length) + length) as u64
    }

    fn write_data(&self, out: &mut Vec<u8>) {
        for array in &self.arrays {
            out.extend_from_slice(array);
            // The header is a multiple of the alignment too.
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
    }

    fn write_metadata(&self, out: &mut Vec<u8>) {
        out.push(ITEM_KEY);
        let written = self.item.encode_length_delimited(out);
        debug_assert!(written.is_ok(), "a vector has room for everything");
    }
}

/// The arrays of one experience, in the order in which they will lie.
#[derive(Default)]
struct Data<'a> {
    arrays: Vec<&'a Bytes>,
    bytes: u64,
}

impl<'a> Data<'a> {
    fn place(&mut self, dtype: Dtype, shape: &[usize], data: &'a Bytes) -> proto::Array {
        let offset = self.bytes;
        self.arrays.push(data);
        let size = (data.len() as u64).next_multiple_of(ALIGNMENT as u64);
        self.bytes = sum([self.bytes, size].into_iter());
        let shape = shape.iter().map(|&size| size as u64).collect();
        proto::Array { dtype: proto_dtype(dtype).into(), shape, offset }
    }

    fn array<T: Element>(&mut self, array: &'a Option<Array<T>>) -> Option<proto::Array> {
        let array = array.as_ref()?;
        Some(self.place(T::DTYPE, &[array.len()], array.bytes()))
    }

    fn tensor(&mut self, tensor: &'a Tensor) -> proto::Array {
        self.place(tensor.dtype(), tensor.shape(), tensor.data())
    }
}

fn item<'a>(
    kind: ExperienceKind,
    fields: &'a ExperienceFields,
    data: &mut Data<'a>,
) -> proto::Item {
    let ExperienceFields {
        eid,
        tokens,
        prompt_length,
        logprobs,
        reward,
        token_level_reward,
        advantages,
        returns,
        teacher_logprobs,
        action_mask,
        chosen,
        rejected,
        truncate_status,
        model_versions,
        info,
        metrics,
        prompt_text,
        response_text,
        messages,
        tools,
        chosen_messages,
        rejected_messages,
        multi_modal_inputs,
        custom_fields,
    } = fields;
    let mut item = proto::Item {
        eid: Some(proto_eid(eid)),
        kind: proto_kind(kind).into(),
        data_bytes: 0,
        prompt_length: *prompt_length as u64,
        tokens: Some(data.place(i32::DTYPE, &[tokens.len()], tokens.bytes())),
        logprobs: data.array(logprobs),
        action_mask: data.array(action_mask),
        reward: *reward,
        info: if *info == Json::object() { Bytes::new() } else { info.bytes().clone() },
        metrics: metrics.clone(),
        truncate_status: proto_truncate_status(*truncate_status).into(),
        model_versions: model_versions.as_ref().map(proto_model_versions),
        prompt_text: prompt_text.clone(),
        response_text: response_text.clone(),
        messages: text(messages),
        tools: text(tools),
        chosen_messages: text(chosen_messages),
        rejected_messages: text(rejected_messages),
        token_level_reward: data.array(token_level_reward),
        advantages: data.array(advantages),
        returns: data.array(returns),
        teacher_logprobs: data.array(teacher_logprobs),
        chosen: data.array(chosen),
        rejected: data.array(rejected),
        multi_modal_inputs: multi_modal_inputs
            .iter()
            .map(|(name, tensor)| (name.clone(), data.tensor(tensor)))
            .collect(),
        custom_fields: custom_fields.iter().map(proto_custom_field).collect(),
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
    let runs = versions.runs();
    proto::ModelVersions {
        tokens: runs.iter().map(|run| run.tokens).collect(),
        // Invariant of the type: no version is above `i64::MAX`.
        versions: runs.iter().map(|run| run.version.map_or(-1, |version| version as i64)).collect(),
    }
}

fn proto_custom_field(field: &CustomField) -> proto::CustomField {
    let CustomField { source_field, destination_field, dtype } = field;
    proto::CustomField {
        source_field: source_field.clone(),
        destination_field: destination_field.clone(),
        dtype: proto_dtype(*dtype).into(),
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

fn proto_dtype(dtype: Dtype) -> proto::Dtype {
    match dtype {
        Dtype::Bool => proto::Dtype::Bool,
        Dtype::U8 => proto::Dtype::U8,
        Dtype::I8 => proto::Dtype::I8,
        Dtype::I16 => proto::Dtype::I16,
        Dtype::I32 => proto::Dtype::I32,
        Dtype::I64 => proto::Dtype::I64,
        Dtype::F16 => proto::Dtype::F16,
        Dtype::Bf16 => proto::Dtype::Bf16,
        Dtype::F32 => proto::Dtype::F32,
        Dtype::F64 => proto::Dtype::F64,
    }
}
