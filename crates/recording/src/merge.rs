//! Merges turns that continue each other into experiences.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::iter::repeat_n;

use rollway_experience::{
    Array, Eid, Experience, ExperienceFields, FieldError, Json, ModelVersions, TruncateStatus,
    VersionSpan,
};
use rollway_model_api::ResponseChoice;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::merge_plan::{MergeCounts, MergePlan, Thread, ThreadOrigin};
use super::turn_table::{StoredTurn, TurnOrigin, TurnTable, value};
use super::{ExperienceWeights, RecordError, Turn};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergedTurns {
    /// Experiences without rewards, in the order of their first turns.
    pub experiences: Vec<Experience>,
    pub counts: MergeCounts,
}

/// Merges turns, in the order of their calls. A turn whose prompt begins with all tokens of an
/// experience continues it; any other begins a new one. Inconsistent turns are refused.
pub fn merge<T: Borrow<Turn>>(
    turns: impl IntoIterator<Item = T>,
) -> Result<MergedTurns, RecordError> {
    let mut store = TurnTable::default();
    for turn in turns {
        let turn: &Turn = turn.borrow();
        let mut content = store.add_content(turn.messages.as_ref(), turn.tools.as_ref())?;
        store.add_labels(&mut content, &turn.labels());
        content.sampling = turn.sampling.as_ref().map(|sampling| store.add_sampling(sampling));
        let (id, model) = (turn.id.clone(), &turn.model);
        let origin = TurnOrigin { id, model, aborted: turn.aborted };
        let choice = ResponseChoice {
            tokens: Some(turn.tokens.clone()),
            logprobs: turn.reported_logprobs(),
            versions: turn.versions.clone(),
            finish_reason: turn.finish_reason.clone(),
            reply: turn.reply.clone(),
        };
        store.push(origin, content, &turn.prompt, choice)?;
    }
    let plan = MergePlan::of(&store, 0);
    let experiences = experiences(&store, &plan, (u64::MAX, &ExperienceWeights::default()))?;
    Ok(MergedTurns { experiences, counts: plan.counts })
}

pub(super) fn experiences(
    store: &TurnTable,
    plan: &MergePlan,
    (max_bytes, weights): (u64, &ExperienceWeights),
) -> Result<Vec<Experience>, RecordError> {
    check_bytes(store, plan, max_bytes)?;
    let mut experiences = Vec::with_capacity(plan.threads.len());
    let agent = |thread: &Thread| {
        let first = store.get(*thread.turns.first()?)?;
        store.text(first.content.agent)
    };
    let weights = weights.of(plan.threads.iter().map(|thread| (thread.origin, agent(thread))));
    for (step, thread) in (0..).zip(&plan.threads) {
        let turns = thread.turns.iter().filter_map(|&turn| store.get(turn));
        let turns: Vec<&StoredTurn> = turns.collect();
        let weight = weights.as_ref().map(|weights| weights[step]);
        let made = experience(store, step as u64, &turns, (thread.origin, weight))
            .map_err(|error| RecordError::Misread(error.to_string()))?;
        experiences.extend(made);
    }
    Ok(experiences)
}

/// Estimates the size of the experiences of a plan. Fails if it is above a limit.
pub(super) fn check_bytes(
    store: &TurnTable,
    plan: &MergePlan,
    limit: u64,
) -> Result<u64, RecordError> {
    let bytes = plan.threads.iter().map(|thread| experience_bytes(store, thread)).sum();
    if bytes <= limit {
        return Ok(bytes);
    }
    let remedy = "raise `explorer.limits.payload_bytes_per_run`, or shorten the run";
    Err(RecordError::TooMuch { what: "bytes of experiences", limit, remedy })
}

/// Estimates the size of an experience.
fn experience_bytes(store: &TurnTable, thread: &Thread) -> u64 {
    const TOKEN_BYTES: usize = size_of::<i32>() + size_of::<f32>() + size_of::<bool>();
    let last = thread.turns.iter().rev().find_map(|&turn| store.get(turn));
    let Some(last) = last else { return 0 };
    let path = last.content.messages.map(|node| store.texts.path(node)).unwrap_or_default();
    let texts =
        path.into_iter().chain(last.content.tools).filter_map(|node| store.texts.piece(node));
    let texts: usize = texts.map(str::len).sum();
    (last.sequence.len() * TOKEN_BYTES + texts + 2 * last.reply.len()) as u64
}

fn experience(
    store: &TurnTable,
    step: u64,
    turns: &[&StoredTurn],
    (origin, weight): (Option<ThreadOrigin>, Option<f64>),
) -> Result<Option<Experience>, FieldError> {
    let [first, ..] = turns else { return Ok(None) };
    let [.., last] = turns else { return Ok(None) };
    let reply = value(&last.reply);
    let truncated = last.aborted || last.finish_reason.as_deref() == Some("length");
    let mut fields = ExperienceFields {
        eid: Eid { step, suffix: suffix(&first.id), ..Eid::default() },
        tokens: store.tokens.read(&last.sequence).into(),
        prompt_length: first.prompt,
        logprobs: logprobs(turns),
        action_mask: (turns.len() > 1).then(|| mask(turns)),
        truncate_status: truncated.then_some(TruncateStatus::ResponseTruncated),
        model_versions: Some(versions(turns).map_err(|problem| problem.at("model_versions"))?),
        info: Json::from_value(&info(store, turns, last, (origin, weight)))
            .map_err(|problem| problem.at("info"))?,
        metrics: BTreeMap::from([("turns".to_owned(), turns.len() as f64)]),
        response_text: text(&reply),
        ..ExperienceFields::default()
    };
    if let Some(node) = last.content.messages {
        let path = store.texts.path(node);
        let texts = path.into_iter().filter_map(|node| store.texts.piece(node));
        let texts: Vec<&str> = texts.chain([&*last.reply]).collect();
        let list = format!("[{}]", texts.join(","));
        fields.messages = Some(Json::new(list).map_err(|problem| problem.at("messages"))?);
    }
    if let Some(tools) = last.content.tools.and_then(|node| store.texts.piece(node)) {
        fields.tools = Some(Json::new(tools.to_owned()).map_err(|problem| problem.at("tools"))?);
    }
    Experience::new(fields).map(Some)
}

/// Returns each turn with the number of context tokens before its completion.
fn parts<'a>(turns: &'a [&'a StoredTurn]) -> impl Iterator<Item = (usize, &'a StoredTurn)> {
    let mut end = turns.first().map_or(0, |first| first.prompt);
    turns.iter().map(move |turn| {
        let context = turn.prompt - end;
        end = turn.sequence.len();
        (context, *turn)
    })
}

fn mask(turns: &[&StoredTurn]) -> Array<bool> {
    let bits = |(context, turn): (usize, &StoredTurn)| {
        repeat_n(false, context).chain(repeat_n(true, turn.response()))
    };
    parts(turns).flat_map(bits).collect()
}

/// Returns the log-probabilities. `None`: a turn has none.
fn logprobs(turns: &[&StoredTurn]) -> Option<Array<f32>> {
    let mut all = Vec::new();
    for (context, turn) in parts(turns) {
        all.extend(repeat_n(0.0, context));
        all.extend_from_slice(turn.logprobs.as_deref()?);
    }
    Some(all.into())
}

fn versions(turns: &[&StoredTurn]) -> Result<ModelVersions, rollway_experience::FieldProblem> {
    let mut versions = ModelVersions::default();
    for (context, turn) in parts(turns) {
        if context > 0 {
            let tokens = u32::try_from(context).unwrap_or(u32::MAX);
            versions.push(VersionSpan { version: None, tokens })?;
        }
        for &run in turn.versions.spans() {
            versions.push(run)?;
        }
    }
    Ok(versions)
}

fn info(
    store: &TurnTable,
    turns: &[&StoredTurn],
    last: &StoredTurn,
    (origin, weight): (Option<ThreadOrigin>, Option<f64>),
) -> Value {
    let ids: Vec<&str> = turns.iter().map(|turn| turn.id.as_str()).collect();
    let mut info = Map::new();
    info.insert("model".to_owned(), json!(last.model));
    info.insert("message_ids".to_owned(), json!(ids));
    info.insert("turns".to_owned(), json!(turns.len()));
    info.insert("finish_reason".to_owned(), json!(last.finish_reason));
    if last.aborted {
        info.insert("aborted".to_owned(), json!(true));
    }
    if let Some(oldest) = turns.iter().filter_map(|turn| turn.versions.oldest()).min() {
        info.insert("model_version".to_owned(), json!(oldest));
    }
    if let Some(weight) = weight {
        info.insert("weight".to_owned(), json!(weight));
    }
    add_sampling(store, turns, &mut info);
    add_lineage(store, turns, origin, &mut info);
    Value::Object(info)
}

/// Adds the sampling parameters that all turns have in common, and those of each turn if they
/// differ.
fn add_sampling(store: &TurnTable, turns: &[&StoredTurn], info: &mut Map<String, Value>) {
    let of = |turn: &&StoredTurn| store.text(turn.content.sampling).map(value);
    let Some(all) = turns.iter().map(of).collect::<Option<Vec<Value>>>() else { return };
    let Some(mut common) = all.first().and_then(Value::as_object).cloned() else { return };
    common.retain(|name, value| all.iter().all(|of| of.get(name) == Some(value)));
    let is_common = all.iter().all(|of| of.as_object() == Some(&common));
    info.insert("sampling".to_owned(), Value::Object(common));
    if !is_common {
        info.insert("sampling_by_turn".to_owned(), Value::Array(all));
    }
}

/// Adds the labels of the client, and the origin that the tokens show.
fn add_lineage(
    store: &TurnTable,
    turns: &[&StoredTurn],
    origin: Option<ThreadOrigin>,
    info: &mut Map<String, Value>,
) {
    let first = turns.first().map(|turn| turn.content).unwrap_or_default();
    if let Some(agent) = store.text(first.agent) {
        info.insert("agent".to_owned(), json!(agent));
    }
    if let Some(origin) = origin {
        info.insert("origin".to_owned(), json!(origin.name()));
    }
    let found = || Some(store.get(origin?.parent()?)?.id.as_str());
    if let Some(parent) = store.text(first.parent).or_else(found) {
        info.insert("parent".to_owned(), json!(parent));
    }
}

fn text(reply: &Value) -> Option<String> {
    let text = match reply {
        Value::String(text) => text,
        message => message.get("content")?.as_str()?,
    };
    Some(text.to_owned())
}

/// Returns twelve hexadecimal digits of the hash of an id.
fn suffix(id: &str) -> String {
    let digest = Sha256::digest(id);
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}
