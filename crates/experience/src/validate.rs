//! Rules of experiences, and fields derived from others.

use super::{Array, ExperienceFields, ExperienceKind, FieldError, FieldProblem, TruncateStatus};

/// Maximum number of entries of `metrics`, `multi_modal_inputs` and `custom_fields`.
pub(super) const MAX_ENTRIES: usize = 65_536;

/// Tells whether trainers, which compute with 32 bits, can use a reward.
pub fn is_finite_reward(reward: f64) -> bool {
    (reward as f32).is_finite()
}

/// Derives the kind from the fields that are set.
pub(super) fn conclude_kind(fields: &ExperienceFields) -> ExperienceKind {
    if fields.action_mask.is_some() {
        ExperienceKind::MultiTurn
    } else if fields.chosen.is_some() && fields.rejected.is_some() {
        ExperienceKind::Dpo
    } else {
        ExperienceKind::SingleTurn
    }
}

/// Fills in the fields that follow from the kind.
pub(super) fn fill_in(kind: ExperienceKind, fields: &mut ExperienceFields) {
    match kind {
        ExperienceKind::SingleTurn => {
            let (length, value) = if prompt_truncated(fields) {
                (fields.logprobs.as_ref().map_or(0, Array::len), false)
            } else {
                (fields.response_length(), true)
            };
            fields.action_mask = Some(std::iter::repeat_n(value, length).collect());
        }
        ExperienceKind::MultiTurn => {}
        ExperienceKind::Dpo => fields.prompt_length = fields.tokens.len(),
    }
}

/// Validates the rules of a kind.
pub(super) fn check(kind: ExperienceKind, fields: &ExperienceFields) -> Result<(), FieldError> {
    if fields.tokens.is_empty() {
        return Err(FieldProblem::Missing.at("tokens"));
    }
    match kind {
        ExperienceKind::SingleTurn => check_single_turn(fields)?,
        ExperienceKind::MultiTurn => present("action_mask", &fields.action_mask)?,
        ExperienceKind::Dpo => check_dpo(fields)?,
    }
    if !fields.info.is_object() {
        return Err(FieldProblem::NotObject.at("info"));
    }
    for (field, found) in [
        ("metrics", fields.metrics.len()),
        ("multi_modal_inputs", fields.multi_modal_inputs.len()),
        ("custom_fields", fields.custom_fields.len()),
    ] {
        if found > MAX_ENTRIES {
            return Err(FieldProblem::TooMany { found, limit: MAX_ENTRIES }.at(field));
        }
    }
    Ok(())
}

fn check_single_turn(fields: &ExperienceFields) -> Result<(), FieldError> {
    let (found, prompt) = (fields.tokens.len(), fields.prompt_length);
    if prompt == 0 {
        return Err(FieldProblem::NotPositive.at("prompt_length"));
    }
    if found <= prompt && !prompt_truncated(fields) {
        return Err(FieldProblem::NoResponse { found, prompt }.at("tokens"));
    }
    Ok(())
}

fn present<T>(field: &'static str, value: &Option<T>) -> Result<(), FieldError> {
    if value.is_some() { Ok(()) } else { Err(FieldProblem::Missing.at(field)) }
}

fn check_dpo(fields: &ExperienceFields) -> Result<(), FieldError> {
    present("chosen", &fields.chosen)?;
    present("rejected", &fields.rejected)?;
    if fields.prompt_length != fields.tokens.len() {
        let (found, expected) = (fields.prompt_length as u64, fields.tokens.len() as u64);
        return Err(FieldProblem::Length { found, expected }.at("prompt_length"));
    }
    Ok(())
}

/// Checks that per-token arrays are as long as the response.
///
/// If the prompt was truncated, the mask sets the length. DPO experiences are not measured.
pub(super) fn check_lengths(
    kind: ExperienceKind,
    fields: &ExperienceFields,
) -> Result<(), FieldError> {
    let expected = match kind {
        ExperienceKind::Dpo => return Ok(()),
        ExperienceKind::SingleTurn | ExperienceKind::MultiTurn if prompt_truncated(fields) => {
            fields.action_mask.as_ref().map_or(0, Array::len)
        }
        ExperienceKind::SingleTurn | ExperienceKind::MultiTurn => {
            let (found, prompt) = (fields.tokens.len(), fields.prompt_length);
            found
                .checked_sub(prompt)
                .ok_or_else(|| FieldProblem::NoResponse { found, prompt }.at("tokens"))?
        }
    };
    let expected = expected as u64;
    let length = |array: &Option<Array<f32>>| array.as_ref().map(|array| array.len() as u64);
    for (field, found) in [
        ("action_mask", fields.action_mask.as_ref().map(|mask| mask.len() as u64)),
        ("logprobs", length(&fields.logprobs)),
        ("token_level_reward", length(&fields.token_level_reward)),
        ("advantages", length(&fields.advantages)),
        ("returns", length(&fields.returns)),
        ("teacher_logprobs", length(&fields.teacher_logprobs)),
        ("model_versions", fields.model_versions.as_ref().map(|versions| versions.tokens())),
    ] {
        if let Some(found) = found
            && found != expected
        {
            return Err(FieldProblem::Length { found, expected }.at(field));
        }
    }
    Ok(())
}

fn prompt_truncated(fields: &ExperienceFields) -> bool {
    fields.truncate_status == Some(TruncateStatus::PromptTruncated)
}
