//! One run of the simulated job in detail.

use rollway_telemetry::view::{AttemptDetail, CallDetail, ExperienceDetail, RunDetail, RunState};
use serde_json::json;

use crate::demo::World;
use crate::runs::{FAILURES, chance, plan};

pub(crate) const QUESTION: &str = "A train leaves at 9:40 and arrives at 13:25. It stops for 18 \
                                   minutes in all. For how many minutes does it move?";

pub(crate) const THOUGHT: &str = "From 9:40 to 13:25 is 3 hours and 45 minutes. Let me make sure \
                                  with the calculator before I take the stops away.\n";

pub(crate) const RESULT: &str = "225";

const ANSWER: &str = "That is 225 minutes between leaving and arriving. The train stands for 18 of \
                      them, so it moves for 225 - 18 = 207 minutes.\n\n**207**";

const WRONG: [&str; 2] = [
    "That is 225 minutes between leaving and arriving. The train stands for 18 of them as well, so \
     it takes 225 + 18 = 243 minutes.\n\n**243**",
    "That is 225 minutes between leaving and arriving.\n\n**225**",
];

/// Returns the last message of a run.
pub(crate) fn answer(index: usize, reward: f64) -> String {
    let text = if reward == 1.0 { ANSWER } else { WRONG[index % 2] };
    text.to_owned()
}

pub(crate) fn of(world: &World, index: usize, now: f64) -> RunDetail {
    let run = world.describe(index, now);
    let began = world.began[index];
    let step = world.batches[world.batch_of(index)].step;
    let plan = plan(index, step);
    let mut attempts = Vec::new();
    let mut at = began;
    for number in 0..run.attempts.max(1) {
        let is_last = number + 1 == run.attempts.max(1);
        if run.state == RunState::Pending {
            break;
        }
        let runs_on = is_last && run.state == RunState::Running;
        let long = plan.seconds * (0.6 + 0.4 * chance(index as u64, u64::from(number)));
        let outcome = match (is_last, run.state) {
            (false, _) => "failed",
            (true, RunState::Running) => "running",
            (true, RunState::Succeeded) => "succeeded",
            (true, RunState::Cancelled) => "cancelled",
            (true, _) => "failed",
        };
        let ended = (!runs_on).then_some(at + long);
        attempts.push(AttemptDetail {
            attempt: index as u64 * 4 + u64::from(number) + 1,
            runner: (index as u32 + number * 7) % 64,
            incarnation: 1,
            location: Some(format!("node-{}", (index as u32 + number) % 4 + 1)),
            sent_at: at,
            began: Some(at + 0.12),
            ended,
            outcome: outcome.to_owned(),
            message: (outcome == "failed").then(|| FAILURES[plan.failure.min(3)].1.to_owned()),
            calls: calls(index, at, long, runs_on, step),
        });
        at += long + 0.8;
    }
    let experiences = match run.state {
        RunState::Succeeded => vec![experience(index, plan.reward, step)],
        _ => Vec::new(),
    };
    RunDetail { run, attempts, experiences, experiences_message: None }
}

fn calls(index: usize, from: f64, long: f64, runs_on: bool, step: u32) -> Vec<CallDetail> {
    let many = 2 + index % 3;
    let part = (long - 0.3) / many as f64;
    let all = (0..many).map(|number| {
        let began = from + 0.14 + part * number as f64;
        let is_open = runs_on && number + 1 == many;
        let draw = chance(index as u64, 40 + number as u64);
        CallDetail {
            call: (index * 10 + number) as u64,
            model: "qwen3-4b".to_owned(),
            server: Some(format!("http://node-{}:8000", index % 2 + 1)),
            began,
            sent: Some(began + 0.1 * part * draw),
            ended: (!is_open).then_some(began + part * (0.55 + 0.4 * draw)),
            status: (!is_open).then_some(200),
            prompt_tokens: Some(58 + 40 * number as u64),
            answer_tokens: (!is_open).then_some(30 + (90.0 * draw) as u64),
            version: (!is_open).then_some(u64::from(step.saturating_sub(1))),
        }
    });
    if runs_on { all.take(2).collect() } else { all.collect() }
}

fn experience(index: usize, reward: f64, step: u32) -> ExperienceDetail {
    let prompt = format!("<|user|>{QUESTION}<|assistant|>");
    let call = "<tool>calculator(\"(13*60+25) - (9*60+40)\")</tool>";
    let answer = answer(index, reward);
    let parts: [(&str, bool); 4] =
        [(THOUGHT, true), (call, true), (RESULT, false), (&answer, true)];
    let mut texts = pieces(&prompt);
    let prompt_length = texts.len() as u64;
    let (mut mask, mut logprobs, mut versions) = (Vec::new(), Vec::new(), Vec::new());
    for (text, is_trained) in parts {
        for piece in pieces(text) {
            let draw = chance(index as u64, 100 + texts.len() as u64);
            let unlikely = if piece.contains(|c: char| c.is_ascii_digit()) { 0.5 } else { 1.6 };
            logprobs.push(if is_trained { -(draw.powi(4) * 4.2 * unlikely) } else { 0.0 });
            mask.push(is_trained);
            let newer = texts.len() as u64 > prompt_length + 38;
            versions.push(is_trained.then(|| u64::from(step) - 1 + u64::from(newer)));
            texts.push(piece);
        }
    }
    let tokens = texts.iter().enumerate().map(|(at, text)| (at * 31 + text.len() * 977) as i64);
    ExperienceDetail {
        eid: json!({ "batch": step, "task": index / 4, "run": index % 4 }),
        reward: Some(reward),
        messages: json!([
            { "role": "user", "content": QUESTION },
            { "role": "assistant", "content": THOUGHT, "tool_calls": [{ "function": {
                "name": "calculator", "arguments": "{\"expression\": \"(13*60+25) - (9*60+40)\"}"
            } }] },
            { "role": "tool", "content": RESULT },
            { "role": "assistant", "content": answer },
        ]),
        prompt_text: Some(prompt),
        response_text: Some(format!("{THOUGHT}{answer}")),
        tokens: tokens.collect(),
        texts: Some(texts),
        logprobs: Some(logprobs),
        mask,
        prompt_length,
        versions: Some(versions),
        metrics: json!({ "reward": reward, "format": 1.0, "tool_calls": 1, "answer_length": 41 }),
        info: json!({}),
        truncated: false,
    }
}

/// Cuts a text like a tokenizer: words with the space before them, and the rest one by one.
fn pieces(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for letter in text.chars() {
        let joins = all.last().is_some_and(|last: &String| {
            let end = last.chars().last().unwrap_or(' ');
            letter.is_alphabetic() && (end.is_alphabetic() || end == ' ') && last.len() < 9
        });
        match all.last_mut() {
            Some(last) if joins => last.push(letter),
            _ => all.push(letter.to_string()),
        }
    }
    all
}
