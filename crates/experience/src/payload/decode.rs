//! Decoding of payloads. Arrays and JSON of the experiences are slices of the payload.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::items::Items;
use super::{ALIGNMENT, PayloadError, PayloadHeader, proto, verify};
use crate::{
    Array, CustomField, Dtype, Eid, Element, Experience, ExperienceFields, ExperienceKind,
    FieldError, FieldProblem, IdPart, Json, ModelVersions, Tensor, TruncateStatus, VersionSpan,
};

/// Minimum metadata of an item: key and length of the item (2 bytes), its kind (2), the size of its
/// data (2), and its tokens with their type and shape (6). Limits the memory that a forged header
/// can reserve.
const MIN_ITEM_METADATA_BYTES: u64 = 12;

/// Minimum data of an item: one token.
const MIN_ITEM_DATA_BYTES: u64 = ALIGNMENT as u64;

/// Decodes a payload of any number of experiences.
///
/// Untrusted bytes give experiences or an error, and allocate at most a small multiple of their
/// size.
pub fn deserialize_many(payload: Bytes) -> Result<Vec<Experience>, PayloadError> {
    let header = verify(&payload)?;
    let room = (header.metadata_bytes / MIN_ITEM_METADATA_BYTES)
        .min(header.data_bytes / MIN_ITEM_DATA_BYTES);
    if header.items > room {
        return Err(PayloadError::Items { found: room, expected: header.items });
    }
    // After `verify` all lengths are those of parts of a slice, so they fit `usize`.
    let data_end = PayloadHeader::BYTES + header.data_bytes as usize;
    let mut data = payload.slice(PayloadHeader::BYTES..data_end);
    let mut items = Items::new(payload.slice(data_end..));

    let mut experiences = Vec::with_capacity(header.items as usize);
    while let Some(bytes) = items.next()? {
        let item = experiences.len();
        if item as u64 == header.items {
            return Err(PayloadError::Items { found: item as u64 + 1, expected: header.items });
        }
        let message =
            proto::Item::decode(bytes).map_err(|error| PayloadError::Schema { item, error })?;
        let experience = take_data(&mut data, message.data_bytes)
            .and_then(|part| experience(message, &part))
            .map_err(|error| PayloadError::Field { item, error })?;
        experiences.push(experience);
    }
    let found = experiences.len() as u64;
    if found != header.items {
        return Err(PayloadError::Items { found, expected: header.items });
    }
    if !data.is_empty() {
        let expected = header.data_bytes;
        return Err(PayloadError::DataUse { found: expected - data.len() as u64, expected });
    }
    Ok(experiences)
}

/// Splits an item's part off the data section.
fn take_data(data: &mut Bytes, bytes: u64) -> Result<Bytes, FieldError> {
    const FIELD: &str = "data_bytes";
    if !bytes.is_multiple_of(ALIGNMENT as u64) {
        return Err(FieldProblem::Unaligned(bytes).at(FIELD));
    }
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= data.len() => Ok(data.split_to(bytes)),
        _ => Err(FieldProblem::OutOfBounds { offset: bytes, room: data.len() }.at(FIELD)),
    }
}

fn experience(item: proto::Item, data: &Bytes) -> Result<Experience, FieldError> {
    let kind = read_kind(item.kind)?;
    let info = (!item.info.is_empty()).then_some(item.info);
    let too_large = |_| FieldProblem::TooLarge(item.prompt_length).at("prompt_length");
    let versions = item.model_versions.map(read_model_versions).transpose();
    let custom_fields = item.custom_fields.into_iter().map(read_custom_field);
    let fields = ExperienceFields {
        eid: item.eid.map(read_eid).unwrap_or_default(),
        tokens: array("tokens", item.tokens, data)?
            .ok_or_else(|| FieldProblem::Missing.at("tokens"))?,
        prompt_length: usize::try_from(item.prompt_length).map_err(too_large)?,
        logprobs: array("logprobs", item.logprobs, data)?,
        reward: item.reward,
        token_level_reward: array("token_level_reward", item.token_level_reward, data)?,
        advantages: array("advantages", item.advantages, data)?,
        returns: array("returns", item.returns, data)?,
        teacher_logprobs: array("teacher_logprobs", item.teacher_logprobs, data)?,
        action_mask: array("action_mask", item.action_mask, data)?,
        chosen: array("chosen", item.chosen, data)?,
        rejected: array("rejected", item.rejected, data)?,
        truncate_status: read_truncate_status(item.truncate_status)?,
        model_versions: versions.map_err(|problem| problem.at("model_versions"))?,
        info: json("info", info)?.unwrap_or_else(Json::object),
        metrics: item.metrics,
        prompt_text: item.prompt_text,
        response_text: item.response_text,
        messages: json("messages", item.messages)?,
        tools: json("tools", item.tools)?,
        chosen_messages: json("chosen_messages", item.chosen_messages)?,
        rejected_messages: json("rejected_messages", item.rejected_messages)?,
        multi_modal_inputs: read_multi_modal_inputs(item.multi_modal_inputs, data)?,
        custom_fields: custom_fields.collect::<Result<_, _>>()?,
    };
    Experience::with_kind(kind, fields)
}

fn array<T: Element>(
    field: &'static str,
    array: Option<proto::Array>,
    data: &Bytes,
) -> Result<Option<Array<T>>, FieldError> {
    let read = |array: proto::Array| {
        // Only the type of the field: `Array` would convert others with a copy.
        let found = read_dtype(array.dtype)?;
        if found != T::DTYPE {
            return Err(FieldProblem::Dtype { found, expected: T::DTYPE });
        }
        Array::try_from(tensor(array, data)?)
    };
    array.map(read).transpose().map_err(|problem| problem.at(field))
}

fn tensor(array: proto::Array, data: &Bytes) -> Result<Tensor, FieldProblem> {
    let proto::Array { dtype, shape, offset } = array;
    let dtype = read_dtype(dtype)?;
    if shape.len() > Tensor::MAX_RANK {
        return Err(FieldProblem::TooMany { found: shape.len(), limit: Tensor::MAX_RANK });
    }
    if !offset.is_multiple_of(ALIGNMENT as u64) {
        return Err(FieldProblem::Unaligned(offset));
    }
    let out_of_bounds = || FieldProblem::OutOfBounds { offset, room: data.len() };
    let shape: Vec<usize> = shape
        .into_iter()
        .map(|size| usize::try_from(size).map_err(|_| FieldProblem::TooLarge(size)))
        .collect::<Result<_, _>>()?;
    let bytes = crate::tensor::data_bytes(dtype, &shape).ok_or_else(out_of_bounds)?;
    let begin = usize::try_from(offset).map_err(|_| out_of_bounds())?;
    let end =
        begin.checked_add(bytes).filter(|&end| end <= data.len()).ok_or_else(out_of_bounds)?;
    Tensor::new(dtype, shape, data.slice(begin..end))
}

fn read_multi_modal_inputs(
    arrays: BTreeMap<String, proto::Array>,
    data: &Bytes,
) -> Result<BTreeMap<String, Tensor>, FieldError> {
    let read = |(name, array): (String, proto::Array)| match tensor(array, data) {
        Ok(tensor) => Ok((name, tensor)),
        Err(problem) => Err(problem.at(format!("multi_modal_inputs.{name}"))),
    };
    arrays.into_iter().map(read).collect()
}

fn json(field: &'static str, text: Option<Bytes>) -> Result<Option<Json>, FieldError> {
    text.map(Json::new).transpose().map_err(|problem| problem.at(field))
}

fn read_eid(eid: proto::Eid) -> Eid {
    use proto::eid::{Batch, Task};

    let proto::Eid { batch, task, run, step, suffix } = eid;
    Eid {
        batch: match batch {
            Some(Batch::BatchNumber(number)) => IdPart::Number(number),
            Some(Batch::BatchText(text)) => IdPart::Text(text),
            None => IdPart::default(),
        },
        task: match task {
            Some(Task::TaskNumber(number)) => IdPart::Number(number),
            Some(Task::TaskText(text)) => IdPart::Text(text),
            None => IdPart::default(),
        },
        run,
        step,
        suffix,
    }
}

fn read_model_versions(message: proto::ModelVersions) -> Result<ModelVersions, FieldProblem> {
    let proto::ModelVersions { tokens, versions } = message;
    if tokens.len() != versions.len() {
        let (found, expected) = (versions.len() as u64, tokens.len() as u64);
        return Err(FieldProblem::Length { found, expected });
    }
    let mut read = ModelVersions::default();
    for (tokens, version) in tokens.into_iter().zip(versions) {
        let version = match version {
            -1 => None,
            _ => Some(u64::try_from(version).map_err(|_| FieldProblem::NegativeVersion(version))?),
        };
        read.push(VersionSpan { version, tokens })?;
    }
    Ok(read)
}

fn read_custom_field(field: proto::CustomField) -> Result<CustomField, FieldError> {
    let proto::CustomField { source_field, destination_field, dtype } = field;
    let dtype = read_dtype(dtype).map_err(|problem| problem.at("custom_fields.dtype"))?;
    Ok(CustomField { source_field, destination_field, dtype })
}

fn read_kind(kind: i32) -> Result<ExperienceKind, FieldError> {
    match proto::Kind::try_from(kind) {
        Ok(proto::Kind::SingleTurn) => Ok(ExperienceKind::SingleTurn),
        Ok(proto::Kind::MultiTurn) => Ok(ExperienceKind::MultiTurn),
        Ok(proto::Kind::Dpo) => Ok(ExperienceKind::Dpo),
        Ok(proto::Kind::Unspecified) => Err(FieldProblem::Missing.at("kind")),
        Err(_) => Err(FieldProblem::UnknownValue(kind).at("kind")),
    }
}

fn read_truncate_status(status: i32) -> Result<Option<TruncateStatus>, FieldError> {
    match proto::TruncateStatus::try_from(status) {
        Ok(proto::TruncateStatus::None) => Ok(None),
        Ok(proto::TruncateStatus::PromptTruncated) => Ok(Some(TruncateStatus::PromptTruncated)),
        Ok(proto::TruncateStatus::ResponseTruncated) => Ok(Some(TruncateStatus::ResponseTruncated)),
        Err(_) => Err(FieldProblem::UnknownValue(status).at("truncate_status")),
    }
}

fn read_dtype(dtype: i32) -> Result<Dtype, FieldProblem> {
    let known = Dtype::ALL.into_iter().find(|known| *known as i32 == dtype);
    known.ok_or(FieldProblem::UnknownValue(dtype))
}

#[test]
fn element_types_have_the_numbers_of_the_schema() {
    for dtype in Dtype::ALL {
        let schema = proto::Dtype::try_from(dtype as i32).expect("a number of the schema");
        assert_eq!(schema.as_str_name(), format!("DTYPE_{dtype:?}").to_uppercase());
    }
}
