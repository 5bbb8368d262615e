//! `rollway debug`: one task, once, everything shown.

#![expect(clippy::print_stdout, reason = "what was asked for goes to standard output")]

use rollway::config::Config;
use rollway::job::{self, Debugged};
use rollway_cli::log::{self, Form};
use rollway_cli::output::Output;
use rollway_core::BatchKind;
use rollway_experience::Experience;
use serde_json::Value;

use crate::{Failure, runtime};

/// Runs the first task of a checked configuration once, and shows everything.
pub(crate) fn debug(config: &Config) -> Result<(), Failure> {
    log::install(config.log.level, &Output::stderr(Form::Plain), None);
    let runtime = runtime()?;
    let debugged = runtime.block_on(job::debug(config))?;
    show(&debugged);
    let status = &debugged.status;
    if status.ok() {
        return Ok(());
    }
    let failure = status.first_error.as_ref().map(ToString::to_string);
    let failure = failure.or_else(|| status.message()).unwrap_or_default();
    Err(Failure::Job(format!("the run failed: {failure}")))
}

fn show(debugged: &Debugged) {
    heading("task");
    println!("{:#}", debugged.task);
    for (number, experience) in debugged.experiences.iter().enumerate() {
        heading(&format!("experience {} of {}", number + 1, debugged.experiences.len()));
        show_experience(experience);
    }
    heading("metrics of the run");
    for (key, value) in debugged.status.metrics(BatchKind::Train).iter() {
        println!("  {key:<40} {value}");
    }
    heading("where time went");
    for phase in &debugged.phases {
        println!("  {:<40} {:>9.1} ms", phase.name, 1e3 * phase.took.as_secs_f64());
    }
    let calls = debugged.calls;
    println!(
        "  of it {} model calls{:<26} {:>9.1} ms, {:.1} ms of which are the gateway's",
        calls.count,
        "",
        1e3 * calls.seconds,
        1e3 * calls.gateway_seconds
    );
    println!();
    println!("experiences and profile are in {}", debugged.folder.display());
}

fn heading(words: &str) {
    println!("\n── {words} ──");
}

fn show_experience(experience: &Experience) {
    println!("  id      {}", experience.eid.uid());
    let reward = experience.reward.map_or_else(|| "none".to_owned(), |reward| reward.to_string());
    println!("  reward  {reward}");
    show_messages(experience);
    let (prompt, length) = (experience.prompt_length, experience.response_length());
    println!("  tokens  {prompt} of the prompt, {length} of the response");
    println!("  {:>6} {:>8} {:>10} {:>6} {:>8}", "place", "token", "log-prob", "mask", "version");
    let logprobs = experience.logprobs.as_ref().map(|them| them.to_vec()).unwrap_or_default();
    let mask = experience.action_mask.as_ref().map(|them| them.to_vec()).unwrap_or_default();
    let versions: Vec<Option<u64>> =
        experience.model_versions.as_ref().map(|them| them.iter().collect()).unwrap_or_default();
    for (place, token) in experience.tokens.iter().enumerate() {
        let at = place.checked_sub(prompt);
        let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let logprob = at.and_then(|at| logprobs.get(at)).map(|it| format!("{it:.4}"));
        let own = at.and_then(|at| mask.get(at)).map(ToString::to_string);
        let version = at.and_then(|at| versions.get(at).copied().flatten());
        println!(
            "  {place:>6} {token:>8} {:>10} {:>6} {:>8}",
            shown(logprob),
            shown(own),
            shown(version.map(|it| it.to_string()))
        );
    }
    if let Some(status) = &experience.truncate_status {
        println!("  cut     {status:?}");
    }
}

/// The conversation, or else the texts.
fn show_messages(experience: &Experience) {
    let messages = experience.messages.as_ref().map(|messages| messages.to_string());
    let messages = messages.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let Some(Value::Array(messages)) = messages else {
        for (name, text) in
            [("prompt", &experience.prompt_text), ("answer", &experience.response_text)]
        {
            if let Some(text) = text {
                println!("  {name:<7} {text}");
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
        println!("  {role:<9} {content}");
        if !message["tool_calls"].is_null() {
            println!("  {:<9} {}", "calls", message["tool_calls"]);
        }
    }
}
