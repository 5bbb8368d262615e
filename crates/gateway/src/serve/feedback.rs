//! Feedback of agents on responses.

use rollway_experience::{IdPart, is_finite_reward};
use serde_json::{Map, Value, json};

use rollway_model_api::{CallError, ErrorKind};

const MAX_IDS: usize = 65_536;

const MAX_NAME_BYTES: usize = 512;

#[derive(Clone, Debug, PartialEq)]
pub struct Feedback {
    /// A number that is finite with 32 bits, too.
    pub reward: f64,
    /// Ids of responses or choices, without duplicates.
    pub msg_ids: Vec<String>,
    pub task: IdPart,
    pub run: u64,
}

/// Result of feedback, in numbers of choices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedbackReceipt {
    /// Choices that got this feedback and are queued for a commit.
    pub accepted: u64,
    /// Choices that had feedback before: the earlier one is kept.
    pub already: u64,
    /// Ids without a stored choice.
    pub unknown: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedbackOutcome {
    Taken(FeedbackReceipt),
    /// Too many bytes wait for a commit.
    Full {
        bytes: u64,
        limit: u64,
    },
}

impl Feedback {
    pub fn parse(body: &[u8]) -> Result<Self, CallError> {
        let body: Value = serde_json::from_slice(body).map_err(|error| {
            CallError::new(ErrorKind::InvalidRequest, format!("the body is not JSON: {error}"))
        })?;
        let Value::Object(fields) = body else {
            let message = "the body is a JSON object with reward, msg_ids and task_id";
            return Err(CallError::new(ErrorKind::InvalidRequest, message));
        };
        Ok(Self {
            reward: reward(&fields)?,
            msg_ids: msg_ids(&fields)?,
            task: task(&fields)?,
            run: run(&fields)?,
        })
    }
}

impl FeedbackReceipt {
    /// 200 if every id was known, 404 if none was, else 207.
    pub fn status(&self) -> u16 {
        match (self.unknown.is_empty(), self.accepted + self.already) {
            (true, _) => 200,
            (false, 0) => 404,
            (false, _) => 207,
        }
    }

    pub fn body(&self) -> Value {
        let status = match self.status() {
            200 if self.accepted == 0 => "already",
            200 => "accepted",
            404 => "unknown",
            _ => "partial",
        };
        let mut body = json!({
            "status": status,
            "accepted": self.accepted,
            "already": self.already,
            "unknown": self.unknown.len(),
            "unknown_ids": self.unknown,
        });
        if self.status() == 404 {
            let message = "unknown ids: none of them was recorded, or all were removed";
            let error = CallError::new(ErrorKind::NotFound, message).at("msg_ids");
            body["error"] = error.body()["error"].take();
        }
        body
    }
}

fn wrong(field: &str, expected: &str) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, format!("`{field}` {expected}")).at(field)
}

fn reward(fields: &Map<String, Value>) -> Result<f64, CallError> {
    let reward = fields.get("reward").ok_or_else(|| wrong("reward", "is missing: a number"))?;
    let reward = reward.as_f64().filter(|reward| is_finite_reward(*reward));
    reward.ok_or_else(|| wrong("reward", "is a finite 32-bit number"))
}

fn msg_ids(fields: &Map<String, Value>) -> Result<Vec<String>, CallError> {
    let expected = "is a list of the ids of answers, and not empty";
    let list = fields.get("msg_ids").and_then(Value::as_array);
    let list = list.filter(|list| !list.is_empty()).ok_or_else(|| wrong("msg_ids", expected))?;
    if list.len() > MAX_IDS {
        return Err(wrong("msg_ids", &format!("has more than {MAX_IDS} ids, which is the limit")));
    }
    let mut known = std::collections::HashSet::new();
    let mut ids = Vec::with_capacity(list.len());
    for (index, id) in list.iter().enumerate() {
        let field = format!("msg_ids[{index}]");
        let id = id.as_str().filter(|id| !id.is_empty() && id.len() <= MAX_NAME_BYTES);
        let id = id.ok_or_else(|| {
            wrong(&field, &format!("is the id of an answer: a text of 1 to {MAX_NAME_BYTES} bytes"))
        })?;
        if known.insert(id) {
            ids.push(id.to_owned());
        }
    }
    Ok(ids)
}

fn task(fields: &Map<String, Value>) -> Result<IdPart, CallError> {
    let expected = format!(
        "is the name of the task: a text of 1 to {MAX_NAME_BYTES} bytes without control \
         characters, or an integer"
    );
    match fields.get("task_id") {
        None => Err(wrong("task_id", "is missing: the name of the task, a text or an integer")),
        Some(Value::String(text)) if is_name(text) => Ok(IdPart::Text(text.clone())),
        Some(value) => {
            value.as_i64().map(IdPart::Number).ok_or_else(|| wrong("task_id", &expected))
        }
    }
}

/// Tells whether databases can store a text as the name of a task.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.contains(char::is_control)
}

fn run(fields: &Map<String, Value>) -> Result<u64, CallError> {
    match fields.get("run_id") {
        None | Some(Value::Null) => Ok(0),
        Some(value) => {
            let run = value.as_u64().filter(|run| i64::try_from(*run).is_ok());
            run.ok_or_else(|| wrong("run_id", "is the number of the run: an integer from 0 on"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str) -> Option<String> {
        Feedback::parse(body.as_bytes()).unwrap_err().param
    }

    #[test]
    fn feedback_is_parsed_and_errors_name_their_field() {
        let good = br#"{"reward": 1, "msg_ids": ["a", "b", "a"], "task_id": 7, "run_id": 2}"#;
        let feedback = Feedback::parse(good).unwrap();
        let msg_ids = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(feedback, Feedback { reward: 1.0, msg_ids, task: 7.into(), run: 2 });

        assert_eq!(refused("{"), None);
        assert_eq!(refused("[]"), None);
        let field = |body: &str| refused(body).unwrap_or_default();
        assert_eq!(field(r#"{"msg_ids": ["a"], "task_id": 1}"#), "reward");
        assert_eq!(field(r#"{"reward": true, "msg_ids": ["a"], "task_id": 1}"#), "reward");
        assert_eq!(field(r#"{"reward": 1, "msg_ids": [], "task_id": 1}"#), "msg_ids");
        assert_eq!(field(r#"{"reward": 1, "msg_ids": "a", "task_id": 1}"#), "msg_ids");
        assert_eq!(field(r#"{"reward": 1, "msg_ids": ["a", 2], "task_id": 1}"#), "msg_ids[1]");
        assert_eq!(field(r#"{"reward": 1, "msg_ids": ["a"]}"#), "task_id");
        assert_eq!(field(r#"{"reward": 1, "msg_ids": ["a"], "task_id": 1.5}"#), "task_id");
        assert_eq!(field(r#"{"reward": 1e39, "msg_ids": ["a"], "task_id": 1}"#), "reward");
        assert_eq!(field(r#"{"reward": 1, "msg_ids": ["a"], "task_id": "a\u0000b"}"#), "task_id");
        assert_eq!(field(r#"{"reward": 1, "msg_ids": ["a"], "task_id": "a\nb"}"#), "task_id");
        let body = r#"{"reward": 1, "msg_ids": ["a"], "task_id": "t", "run_id": -1}"#;
        assert_eq!(field(body), "run_id");
    }

    #[test]
    fn values_do_not_hide_in_texts() {
        let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
        for text in ["\\\"t\\\"", &deep] {
            let task = format!(r#"{{"$serde_json::private::RawValue":"{text}"}}"#);
            let body = format!(r#"{{"reward": 1, "msg_ids": ["a"], "task_id": {task}}}"#);
            assert_eq!(refused(&body).as_deref(), Some("task_id"), "{body}");
        }
    }

    #[test]
    fn the_status_depends_on_unknown_ids() {
        let receipt = |accepted, already, unknown: &[&str]| {
            let unknown = unknown.iter().map(|id| (*id).to_owned()).collect();
            FeedbackReceipt { accepted, already, unknown }.status()
        };
        assert_eq!(receipt(2, 0, &[]), 200);
        assert_eq!(receipt(0, 2, &[]), 200);
        assert_eq!(receipt(1, 0, &["x"]), 207);
        assert_eq!(receipt(0, 0, &["x"]), 404);
    }
}
