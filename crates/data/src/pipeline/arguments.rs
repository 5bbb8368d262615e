//! Parsing of operator arguments with user-facing errors.

use serde_json::{Map, Value};

use rollway_base::suggest::nearest;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator `{operator}`: {key}: {problem}")]
pub struct ArgumentError {
    pub operator: String,
    /// Path of the argument: `threshold`, `reward_shaping_configs[2].weight`.
    pub key: String,
    pub problem: String,
}

/// Arguments read one by one; unread ones are an error at the end.
#[derive(Debug)]
pub struct OperatorArguments {
    operator: String,
    path: String,
    entries: Map<String, Value>,
    accepted: Vec<&'static str>,
}

impl OperatorArguments {
    /// Starts reading the arguments of an operator: an object, or `null` for none.
    pub fn new(operator: &str, value: &Value) -> Result<Self, ArgumentError> {
        Self::at(operator, String::new(), value)
    }

    /// Reads a number that satisfies `accept`; `expected` describes it.
    pub fn number(
        &mut self,
        key: &'static str,
        expected: &str,
        accept: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ArgumentError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.is_finite() && accept(number) => Ok(Some(number)),
            _ => Err(self.unexpected(key, &value, expected)),
        }
    }

    /// Reads an integer of at least `least`.
    pub fn count(
        &mut self,
        key: &'static str,
        least: usize,
    ) -> Result<Option<usize>, ArgumentError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) if number >= least => Ok(Some(number)),
            _ => Err(self.unexpected(key, &value, &format!("a whole number, {least} or greater"))),
        }
    }

    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, ArgumentError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.unexpected(key, &value, "a text")),
        }
    }

    /// Reads one of several words and returns its value.
    pub fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ArgumentError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let chosen = choices.iter().find(|(word, _)| value.as_str() == Some(word));
        match chosen {
            Some(&(_, choice)) => Ok(Some(choice)),
            None => {
                let words: Vec<&str> = choices.iter().map(|&(word, _)| word).collect();
                Err(self.unexpected(key, &value, &format!("one of {}", words.join(", "))))
            }
        }
    }

    /// Reads a list of objects.
    pub fn list(&mut self, key: &'static str) -> Result<Option<Vec<Self>>, ArgumentError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Array(values)) => {
                let path = |index| format!("{}[{index}]", self.key_path(key));
                let element = |(index, value)| Self::at(&self.operator, path(index), value);
                values.iter().enumerate().map(element).collect::<Result<_, _>>().map(Some)
            }
            Some(value) => Err(self.unexpected(key, &value, "a list")),
        }
    }

    /// Refuses an unsupported argument; `null` and `false` pass.
    pub fn refuse(&mut self, key: &'static str, reason: &str) -> Result<(), ArgumentError> {
        match self.take(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(value) => Err(self.error(key, format!("{value} is not supported: {reason}"))),
        }
    }

    /// Returns the error of a missing argument.
    pub fn missing(&self, key: &'static str) -> ArgumentError {
        self.error(key, "missing; it has no default".to_owned())
    }

    /// Refuses unread arguments.
    pub fn finish(self) -> Result<(), ArgumentError> {
        let Some((key, value)) = self.entries.iter().next() else { return Ok(()) };
        let remedy = match nearest(key, self.accepted.iter().copied()) {
            Some(name) => format!("did you mean `{name}`?"),
            None if self.accepted.is_empty() => "it takes no arguments".to_owned(),
            None => format!("there is {}", self.accepted.join(", ")),
        };
        Err(self
            .error(key, format!("unknown argument (its value is {}); {remedy}", shortened(value))))
    }

    fn at(operator: &str, path: String, value: &Value) -> Result<Self, ArgumentError> {
        let entries = match value {
            Value::Null if path.is_empty() => Map::new(),
            Value::Object(entries) => entries.clone(),
            _ => {
                let key = if path.is_empty() { "args".to_owned() } else { path };
                let problem = format!("{} where keys with values are expected", shortened(value));
                return Err(ArgumentError { operator: operator.to_owned(), key, problem });
            }
        };
        Ok(Self { operator: operator.to_owned(), path, entries, accepted: Vec::new() })
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.accepted.push(key);
        self.entries.remove(key).filter(|value| !value.is_null())
    }

    fn unexpected(&self, key: &str, value: &Value, expected: &str) -> ArgumentError {
        self.error(key, format!("{} where {expected} is expected", shortened(value)))
    }

    fn error(&self, key: &str, problem: String) -> ArgumentError {
        ArgumentError { operator: self.operator.clone(), key: self.key_path(key), problem }
    }

    fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// Formats a value for a message, truncated.
fn shortened(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
