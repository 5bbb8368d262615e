//! What may be an experience, and what follows from what was given.

use super::{Array, FieldError, Fields, Kind, Problem, TruncateStatus};

/// How many entries `metrics`, `multi_modal_inputs` and `custom_fields` may have.
pub(super) const ENTRIES_MAX: usize = 65_536;

/// Concludes the kind from which fields are given.
pub(super) fn conclude_kind(fields: &Fields) -> Kind {
    if fields.action_mask.is_some() {
        Kind::MultiTurn
    } else if fields.chosen.is_some() && fields.rejected.is_some() {
        Kind::Dpo
    } else {
        Kind::SingleTurn
    }
}

/// Fills in what follows from the kind.
pub(super) fn fill_in(kind: Kind, fields: &mut Fields) {
    match kind {
        Kind::SingleTurn => {
            let (length, value) = if prompt_truncated(fields) {
                (fields.logprobs.as_ref().map_or(0, Array::len), false)
            } else {
                (fields.response_length(), true)
            };
            fields.action_mask = Some(std::iter::repeat_n(value, length).collect());
        }
        Kind::MultiTurn => {}
        Kind::Dpo => fields.prompt_length = fields.tokens.len(),
    }
}

/// Checks what has to hold for every experience of a kind.
pub(super) fn check(kind: Kind, fields: &Fields) -> Result<(), FieldError> {
    if fields.tokens.is_empty() {
        return Err(Problem::Missing.at("tokens"));
    }
    match kind {
        Kind::SingleTurn => check_single_turn(fields)?,
        Kind::MultiTurn => {
            if fields.action_mask.is_none() {
                return Err(Problem::Missing.at("action_mask"));
            }
        }
        Kind::Dpo => check_dpo(fields)?,
    }
    if !fields.info.is_object() {
        return Err(Problem::NotObject.at("info"));
    }
    for (field, found) in [
        ("metrics", fields.metrics.len()),
        ("multi_modal_inputs", fields.multi_modal_inputs.len()),
        ("custom_fields", fields.custom_fields.len()),
    ] {
        if found > ENTRIES_MAX {
            return Err(Problem::TooMany { found, limit: ENTRIES_MAX }.at(field));
        }
    }
    Ok(())
}

fn check_single_turn(fields: &Fields) -> Result<(), FieldError> {
    let (found, prompt) = (fields.tokens.len(), fields.prompt_length);
    if prompt == 0 {
        return Err(Problem::NotPositive.at("prompt_length"));
    }
    if found <= prompt && !prompt_truncated(fields) {
        return Err(Problem::NoResponse { found, prompt }.at("tokens"));
    }
    Ok(())
}

fn check_dpo(fields: &Fields) -> Result<(), FieldError> {
    if fields.chosen.is_none() {
        return Err(Problem::Missing.at("chosen"));
    }
    if fields.rejected.is_none() {
        return Err(Problem::Missing.at("rejected"));
    }
    if fields.prompt_length != fields.tokens.len() {
        let (found, expected) = (fields.prompt_length as u64, fields.tokens.len() as u64);
        return Err(Problem::Length { found, expected }.at("prompt_length"));
    }
    Ok(())
}

/// Checks that the arrays that belong to the response are as long as it.
///
/// If the prompt was truncated there need not be a response; then the mask sets the length. What a
/// DPO experience has beside its answers is not measured.
pub(super) fn check_lengths(kind: Kind, fields: &Fields) -> Result<(), FieldError> {
    let expected = match kind {
        Kind::Dpo => return Ok(()),
        Kind::SingleTurn | Kind::MultiTurn if prompt_truncated(fields) => {
            fields.action_mask.as_ref().map_or(0, Array::len)
        }
        Kind::SingleTurn | Kind::MultiTurn => {
            let (found, prompt) = (fields.tokens.len(), fields.prompt_length);
            found
                .checked_sub(prompt)
                .ok_or_else(|| Problem::NoResponse { found, prompt }.at("tokens"))?
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
            return Err(Problem::Length { found, expected }.at(field));
        }
    }
    Ok(())
}

fn prompt_truncated(fields: &Fields) -> bool {
    fields.truncate_status == Some(TruncateStatus::PromptTruncated)
}
