//! Conversion of rows to tasks by the configured format.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::TasksetErrorKind as Kind;
use super::rows::FieldNames;
use super::{Fields, Result, TasksetError};
use rollway_base::suggest::instead;
use rollway_config::{Args, Format, Taskset};

/// Values common to all tasks of a taskset.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskDefaults {
    /// Position among the tasksets of the job.
    pub taskset_id: usize,
    /// Name in metrics and logs.
    pub name: Arc<str>,
    pub is_eval: bool,
    pub repeat_times: u32,
    /// Format keys, as passed to workflows.
    pub format_args: Args,
    /// Sampling parameters.
    pub rollout_args: Args,
    pub workflow_args: Args,
    pub reward_fn_args: Args,
}

/// A row and the meaning of its fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatasetRow {
    /// The unchanged row.
    pub raw: Fields,
    pub prompt: Option<Value>,
    /// Expected answer.
    pub response: Option<Value>,
    /// Initial messages: system prompt and prompt, or the messages of the row.
    pub messages: Vec<Value>,
    pub tools: Option<Value>,
    pub images: Option<Value>,
    pub videos: Option<Value>,
    /// Workflow of the row, else of the taskset, else of the job.
    pub workflow: Option<Arc<str>>,
    /// Reward function of the row, else of the taskset, else of the job.
    pub reward_fn: Option<Arc<str>>,
}

/// A selected task.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectedTask {
    pub source: Arc<TaskDefaults>,
    /// Row in the taskset, from 0.
    pub index: u64,
    /// Number of completed passes over all tasksets.
    pub epoch: u64,
    pub task: DatasetRow,
}

/// Reference to a selected task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskRef {
    /// Position among the tasksets of the job.
    pub taskset_id: usize,
    /// Row in the taskset, from 0.
    pub index: u64,
    /// Number of completed passes over all tasksets.
    pub epoch: u64,
}

impl SelectedTask {
    pub fn pick(&self) -> TaskRef {
        TaskRef { taskset_id: self.source.taskset_id, index: self.index, epoch: self.epoch }
    }

    /// Returns the key under which selectors get feedback.
    pub fn task_index(&self) -> Value {
        json!({"index": self.index, "taskset_id": self.source.taskset_id})
    }

    /// Returns the fields of the Python task without its workflow; empty ones are omitted.
    pub fn fields(&self) -> Args {
        let source = &*self.source;
        let mut fields = Args::new();
        fields.insert("raw_task".to_owned(), Value::Object(self.task.raw.clone()));
        fields.insert("index".to_owned(), self.task_index());
        fields.insert("repeat_times".to_owned(), source.repeat_times.into());
        fields.insert("is_eval".to_owned(), source.is_eval.into());
        if let Some(reward_fn) = &self.task.reward_fn {
            fields.insert("reward_fn".to_owned(), reward_fn.as_ref().into());
        }
        for (name, args) in [
            ("format_args", &source.format_args),
            ("rollout_args", &source.rollout_args),
            ("workflow_args", &source.workflow_args),
            ("reward_fn_args", &source.reward_fn_args),
        ] {
            if !args.is_empty() {
                fields.insert(name.to_owned(), Value::Object(args.clone()));
            }
        }
        fields
    }
}

/// Conversion of rows to tasks.
#[derive(Debug)]
pub(super) struct RowFormat {
    format: Format,
    is_prompt_needed: bool,
    workflow: Option<Arc<str>>,
    reward_fn: Option<Arc<str>>,
}

/// Problem of a row and its remedy; the caller adds the location.
pub(super) struct RowError(String, String);

impl RowError {
    pub(super) fn at(self, location: String) -> TasksetError {
        Kind::Row.at(location, self.0, self.1)
    }
}

impl RowFormat {
    pub(super) fn new(
        format: &Format,
        is_prompt_needed: bool,
        workflow: Option<&str>,
        reward_fn: Option<&str>,
    ) -> Self {
        let (workflow, reward_fn) = (workflow.map(Arc::from), reward_fn.map(Arc::from));
        Self { format: format.clone(), is_prompt_needed, workflow, reward_fn }
    }

    /// Refuses configured keys that no row has.
    pub(super) fn check(&self, location: &str, keys: &FieldNames) -> Result<()> {
        let (format, default) = (&self.format, Format::default());
        let needs_response = format.response_key != default.response_key;
        let keys_of_options = [
            ("prompt_key", self.needs_prompt().then_some(&format.prompt_key)),
            ("response_key", needs_response.then_some(&format.response_key)),
            ("messages_key", format.messages_key.as_ref()),
            ("tools_key", format.tools_key.as_ref()),
            ("image_key", format.image_key.as_ref()),
            ("video_key", format.video_key.as_ref()),
            ("system_prompt_key", format.system_prompt_key.as_ref()),
            ("workflow_key", format.workflow_key.as_ref()),
            ("reward_fn_key", format.reward_fn_key.as_ref()),
        ];
        for (option, key) in keys_of_options {
            if let Some(key) = key.filter(|key| !keys.has(key)) {
                let what = format!("`format.{option}` is `{key}`, but no row has that field");
                return Err(Kind::Key.at(location, what, instead(key, keys.names())));
            }
        }
        Ok(())
    }

    /// Returns the field that every row must have, if any.
    pub(super) fn needed_key(&self) -> Option<&str> {
        let needed = self.format.messages_key.as_deref().unwrap_or(&self.format.prompt_key);
        self.needs_prompt_or_messages().then_some(needed)
    }

    fn needs_prompt_or_messages(&self) -> bool {
        self.format.messages_key.is_some() || self.needs_prompt()
    }

    fn needs_prompt(&self) -> bool {
        let is_chosen = self.format.prompt_key != Format::default().prompt_key;
        self.format.messages_key.is_none() && (self.is_prompt_needed || is_chosen)
    }

    pub(super) fn task(&self, raw: Fields) -> std::result::Result<DatasetRow, RowError> {
        let format = &self.format;
        let field = |key: &str| raw.get(key).filter(|value| !value.is_null());
        let named = |key: &Option<String>| key.as_deref().and_then(field);
        if let Some(key) = self.needed_key().filter(|key| field(key).is_none()) {
            let what = format!("the row has no `{key}`");
            return Err(RowError(what, "add it, or remove the row".to_owned()));
        }
        let prompt = field(&format.prompt_key).cloned();
        let system = match named(&format.system_prompt_key) {
            Some(value) => Some(text(value)),
            None => format.system_prompt.clone(),
        };
        let messages = match (&format.messages_key, &prompt) {
            (Some(key), _) => field(key).map(|value| messages(key, value)).transpose()?,
            (None, Some(list @ Value::Array(_))) => Some(messages(&format.prompt_key, list)?),
            (None, Some(prompt)) => Some(vec![json!({"role": "user", "content": text(prompt)})]),
            (None, None) => None,
        };
        let tools = named(&format.tools_key).map(|value| without_nulls(&parsed(value)));
        let word = |key: &Option<String>, default: &Option<Arc<str>>| match (key, named(key)) {
            (_, Some(Value::String(name))) => Ok(Some(Arc::from(name.as_str()))),
            (Some(key), Some(other)) => {
                let what = format!("`{key}` holds {other}, which is not a name");
                Err(RowError(what, "write a registered name or `package.module:name`".to_owned()))
            }
            _ => Ok(default.clone()),
        };
        Ok(DatasetRow {
            response: field(&format.response_key).cloned(),
            messages: with_system(system, messages.unwrap_or_default()),
            tools,
            images: named(&format.image_key).cloned(),
            videos: named(&format.video_key).cloned(),
            workflow: word(&format.workflow_key, &self.workflow)?,
            reward_fn: word(&format.reward_fn_key, &self.reward_fn)?,
            prompt,
            raw,
        })
    }
}

/// Prepends the system prompt unless the messages have one.
fn with_system(system: Option<String>, messages: Vec<Value>) -> Vec<Value> {
    let has_own = messages.first().is_some_and(|first| first["role"] == "system");
    match system {
        Some(system) if !has_own && !messages.is_empty() => {
            let first = json!({"role": "system", "content": system});
            std::iter::once(first).chain(messages).collect()
        }
        _ => messages,
    }
}

fn messages(key: &str, value: &Value) -> std::result::Result<Vec<Value>, RowError> {
    let hint = || "write them as [{\"role\": \"user\", \"content\": \"…\"}]".to_owned();
    let value = parsed(value);
    let Value::Array(list) = &value else {
        return Err(RowError(format!("`{key}` is not a list of messages"), hint()));
    };
    if let Some(at) = list.iter().position(|message| !message["role"].is_string()) {
        return Err(RowError(format!("message {at} of `{key}` has no role"), hint()));
    }
    if list.is_empty() {
        return Err(RowError(format!("`{key}` has no messages"), hint()));
    }
    Ok(list.iter().map(without_nulls).collect())
}

/// Parses JSON text: columnar files store lists and objects so.
fn parsed(value: &Value) -> Value {
    let read = |text: &String| serde_json::from_str(text).ok();
    match value {
        Value::String(text) => read(text).unwrap_or_else(|| value.clone()),
        other => other.clone(),
    }
}

/// Removes null members: columnar files have every member in every object.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, member)| !member.is_null());
            members.map(|(name, member)| (name.clone(), without_nulls(member))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns the configured format keys.
pub(super) fn format_args(taskset: &Taskset) -> Args {
    match serde_json::to_value(&taskset.format) {
        Ok(Value::Object(args)) => args.into_iter().filter(|(_, it)| !it.is_null()).collect(),
        _ => Args::new(),
    }
}
