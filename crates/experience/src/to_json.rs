//! Experiences as JSON for people and for JSON lines. Arrays are left out; nothing reads it back.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Eid, Experience, IdPart};

impl Experience {
    /// Returns what a line of JSON says about it: everything but arrays, and of what is optional
    /// only what is set.
    ///
    /// `response_length` is negative if a truncated prompt is longer than the tokens. A metric or a
    /// reward that is no finite number becomes `null`, because JSON has no other word for it.
    pub fn to_json(&self) -> Value {
        let response_length = self.tokens.len() as i128 - self.prompt_length as i128;
        let mut dict = Map::new();
        let mut put = |key: &str, value: Value| dict.insert(key.to_owned(), value);
        put("eid", self.eid.to_json());
        put("type", self.kind().name().into());
        put("prompt_length", self.prompt_length.into());
        put("response_length", i64::try_from(response_length).unwrap_or(i64::MIN).into());
        put("info", self.info.value());
        put("metrics", metrics(&self.metrics));
        let texts = [("prompt_text", &self.prompt_text), ("response_text", &self.response_text)];
        for (key, text) in texts {
            if let Some(text) = text {
                put(key, text.as_str().into());
            }
        }
        for (key, json) in [
            ("messages", &self.messages),
            ("tools", &self.tools),
            ("chosen_messages", &self.chosen_messages),
            ("rejected_messages", &self.rejected_messages),
        ] {
            if let Some(json) = json {
                put(key, json.value());
            }
        }
        if let Some(reward) = self.reward {
            put("reward", reward.into());
        }
        if let Some(status) = self.truncate_status {
            put("truncate_status", status.name().into());
        }
        Value::Object(dict)
    }
}

impl Eid {
    /// Returns its five fields as a JSON object.
    pub fn to_json(&self) -> Value {
        let Self { batch, task, run, step, suffix } = self;
        json!({
            "batch": id_part(batch),
            "task": id_part(task),
            "run": run,
            "step": step,
            "suffix": suffix,
        })
    }
}

fn id_part(part: &IdPart) -> Value {
    match part {
        IdPart::Number(number) => (*number).into(),
        IdPart::Text(text) => text.as_str().into(),
    }
}

fn metrics(metrics: &BTreeMap<String, f64>) -> Value {
    metrics.iter().map(|(name, &value)| (name.clone(), Value::from(value))).collect()
}
