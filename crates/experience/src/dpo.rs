//! DPO experiences for algorithms that take single-turn ones.

use super::{Array, Experience, ExperienceFields, ExperienceKind, FieldError, FieldProblem, Json};

/// Makes two single-turn experiences of a DPO one: the prompt with the better and with the worse
/// answer, in this order.
///
/// They keep everything of the name but the suffix, for which the caller brings two new ones. What
/// belongs to the DPO experience's own response, such as advantages, is not taken over.
pub fn split_dpo_experience_to_single_turn(
    experience: &Experience,
    suffixes: [String; 2],
) -> Result<[Experience; 2], FieldError> {
    let found = experience.kind();
    if found != ExperienceKind::Dpo {
        return Err(FieldProblem::Kind { found, expected: ExperienceKind::Dpo }.at("kind"));
    }
    let answer =
        |field: &'static str, tokens: &Option<Array<i32>>, messages: &Option<Json>, suffix| {
            let answer = tokens.as_ref().ok_or_else(|| FieldProblem::Missing.at(field))?;
            if answer.is_empty() {
                return Err(FieldProblem::Missing.at(field));
            }
            let mut eid = experience.eid.clone();
            eid.suffix = suffix;
            Experience::new(ExperienceFields {
                eid,
                tokens: experience.tokens.iter().chain(answer.iter()).collect(),
                prompt_length: experience.tokens.len(),
                reward: experience.reward,
                info: experience.info.clone(),
                metrics: experience.metrics.clone(),
                prompt_text: experience.prompt_text.clone(),
                messages: messages.clone(),
                tools: experience.tools.clone(),
                multi_modal_inputs: experience.multi_modal_inputs.clone(),
                custom_fields: experience.custom_fields.clone(),
                ..ExperienceFields::default()
            })
        };
    let [first, second] = suffixes;
    Ok([
        answer("chosen", &experience.chosen, &experience.chosen_messages, first)?,
        answer("rejected", &experience.rejected, &experience.rejected_messages, second)?,
    ])
}
