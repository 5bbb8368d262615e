//! Experiences as JSON for logs and JSON lines. Arrays are left out; nothing parses it.

use serde_json::{Map, Value, json};

use super::{Eid, Experience, IdPart, Json};

impl Experience {
    /// Returns all fields but arrays; optional fields only if they are set.
    ///
    /// `response_length` is negative if a truncated prompt is longer than the tokens. A metric or
    /// reward that is not finite becomes `null`.
    pub fn to_json(&self) -> Value {
        let response_length = self.tokens.len() as i128 - self.prompt_length as i128;
        let mut dict = Map::new();
        let mut put = |key: &str, value: Value| dict.insert(key.to_owned(), value);
        put("eid", self.eid.to_json());
        put("type", self.kind().name().into());
        put("prompt_length", self.prompt_length.into());
        put("response_length", i64::try_from(response_length).unwrap_or(i64::MIN).into());
        put("info", self.info.value());
        put("metrics", json!(self.metrics));
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        let value = |json: &Option<Json>| json.as_ref().map(Json::value);
        for (key, value) in [
            ("prompt_text", text(&self.prompt_text)),
            ("response_text", text(&self.response_text)),
            ("messages", value(&self.messages)),
            ("tools", value(&self.tools)),
            ("chosen_messages", value(&self.chosen_messages)),
            ("rejected_messages", value(&self.rejected_messages)),
            ("reward", self.reward.map(Value::from)),
            ("truncate_status", self.truncate_status.map(|status| status.name().into())),
        ] {
            dict.extend(value.map(|value| (key.to_owned(), value)));
        }
        Value::Object(dict)
    }
}

impl Eid {
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
