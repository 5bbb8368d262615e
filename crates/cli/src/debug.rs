//! `rollway debug`: runs one task once and shows messages, tokens, reward and timing.

use std::collections::HashMap;

use crate::log;
use crate::output::{LogFormat, Output};
use rollway::config::Config;
use rollway::job::{self, DebugReport};
use rollway_core::BatchType;
use rollway_experience::Experience;
use serde_json::Value;

use crate::{CliError, runtime};

/// Warning after a run that nothing can be learned from.
const NO_REWARD: &str = "warning: the run has no reward, so that nothing can be learned from it\n\
                         hint: return a reward from the workflow (a number, or a dictionary with \
                         `reward`), or add an operator that sets rewards";

/// Runs the first task of a checked configuration once and prints the result.
pub(crate) fn debug(config: &Config) -> Result<(), CliError> {
    log::install(config.log.level, &Output::stderr(LogFormat::Plain), None);
    let runtime = runtime()?;
    let debugged = runtime.block_on(job::debug(config))?;
    print_result(&debugged);
    let status = &debugged.status;
    if status.ok() {
        let is_rewarded = |it: &Experience| it.reward.is_some() || it.token_level_reward.is_some();
        if !debugged.experiences.iter().any(is_rewarded) {
            errln!("{NO_REWARD}");
        }
        return Ok(());
    }
    let failure = status.first_error.as_ref().map(ToString::to_string);
    let failure = failure.or_else(|| status.message()).unwrap_or_default();
    Err(CliError::Job(format!("the run failed: {failure}")))
}

fn print_result(debugged: &DebugReport) {
    heading("task");
    outln!("{:#}", debugged.task);
    for (number, experience) in debugged.experiences.iter().enumerate() {
        heading(&format!("experience {} of {}", number + 1, debugged.experiences.len()));
        print_experience(experience, &debugged.token_texts);
    }
    heading("metrics of the run");
    for (key, value) in debugged.status.metrics(BatchType::Train).iter() {
        outln!("  {key:<40} {value}");
    }
    heading("timing");
    for phase in &debugged.phases {
        outln!("  {:<40} {:>9.1} ms", phase.name, 1e3 * phase.took.as_secs_f64());
    }
    let calls = debugged.calls;
    let plural = if calls.count == 1 { "" } else { "s" };
    outln!(
        "  {:<40} {:>9.1} ms (gateway: {:.1} ms)",
        format!("{} model call{plural}, as part of the task", calls.count),
        1e3 * calls.seconds,
        1e3 * calls.gateway_seconds
    );
    outln!();
    outln!("experiences and profile: {}", debugged.folder.display());
}

fn heading(text: &str) {
    outln!("\n── {text} ──");
}

fn print_experience(experience: &Experience, texts: &HashMap<i32, String>) {
    outln!("  id      {}", experience.eid.uid());
    let reward = experience.reward.map_or_else(|| "none".to_owned(), |reward| reward.to_string());
    outln!("  reward  {reward}");
    print_messages(experience);
    let (prompt, length) = (experience.prompt_length, experience.response_length());
    outln!("  tokens  {prompt} prompt, {length} response");
    let text_head = if texts.is_empty() { "" } else { "  text" };
    outln!(
        "  {:>6} {:>8} {:>10} {:>6} {:>8}{text_head}",
        "index",
        "token",
        "log-prob",
        "mask",
        "version"
    );
    let logprobs = experience.logprobs.as_ref().map(|values| values.to_vec()).unwrap_or_default();
    let mask = experience.action_mask.as_ref().map(|values| values.to_vec()).unwrap_or_default();
    let versions: Vec<Option<u64>> = experience
        .model_versions
        .as_ref()
        .map(|values| values.iter().collect())
        .unwrap_or_default();
    for (index, token) in experience.tokens.iter().enumerate() {
        let offset = index.checked_sub(prompt);
        let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let logprob = offset.and_then(|offset| logprobs.get(offset)).map(|it| format!("{it:.4}"));
        let mask = offset.and_then(|offset| mask.get(offset)).map(ToString::to_string);
        let version = offset.and_then(|offset| versions.get(offset).copied().flatten());
        outln!(
            "  {index:>6} {token:>8} {:>10} {:>6} {:>8}{}",
            shown(logprob),
            shown(mask),
            shown(version.map(|it| it.to_string())),
            texts.get(&token).map(|text| format!("  {text:?}")).unwrap_or_default()
        );
    }
    if let Some(status) = &experience.truncate_status {
        outln!("  truncated {status:?}");
    }
}

/// Prints the messages, else prompt and response text.
fn print_messages(experience: &Experience) {
    let messages = experience.messages.as_ref().map(|messages| messages.to_string());
    let messages = messages.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let Some(Value::Array(messages)) = messages else {
        for (name, text) in
            [("prompt", &experience.prompt_text), ("response", &experience.response_text)]
        {
            if let Some(text) = text {
                outln!("  {name:<8} {text}");
            }
        }
        return;
    };
    for message in &messages {
        let role = message["role"].as_str().unwrap_or("?");
        let content = match &message["content"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        outln!("  {role:<9} {content}");
        if !message["tool_calls"].is_null() {
            outln!("  {:<9} {}", "calls", message["tool_calls"]);
        }
    }
}
