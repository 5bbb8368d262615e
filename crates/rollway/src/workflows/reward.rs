//! Built-in reward functions.
//!
//! `exact_match` and `contains` compare trimmed text. Their arguments select a part of the answer:
//! `take: last_number`, or the last match of a `pattern` (its first group if it has one).

use std::fmt;
use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};
use rollway_base::suggest::instead;
use rollway_config::Args;
use serde::Deserialize;
use serde_json::Value;

/// Maximum size of a compiled pattern in bytes.
const PATTERN_BYTES: usize = 1 << 20;

/// Unknown reward function or invalid arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowArgumentError {
    #[error("{message}; {hint}")]
    UnknownReward { message: String, hint: String },
    #[error("{message}; {hint}")]
    InvalidArguments { message: String, hint: String },
}

/// A reward function with its arguments.
#[derive(Clone, Debug)]
pub struct RewardFn {
    rule: RewardRule,
    part: RewardPart,
    ignore_case: bool,
}

#[derive(Clone, Copy, Debug)]
enum RewardRule {
    Exact,
    Contains,
}

/// Part of the answer that is compared.
#[derive(Clone, Debug)]
enum RewardPart {
    All,
    LastNumber,
    LastMatch(Regex),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Arguments {
    take: AnswerExtraction,
    pattern: Option<String>,
    ignore_case: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerExtraction {
    #[default]
    All,
    LastNumber,
}

impl RewardFn {
    pub const NAMES: &[&str] = &["exact_match", "contains"];

    /// Returns the reward function of a name.
    pub fn named(name: &str, args: &Args) -> Result<Self, WorkflowArgumentError> {
        let rule = match name {
            "exact_match" => RewardRule::Exact,
            "contains" => RewardRule::Contains,
            _ => {
                let message = format!("unknown reward function `{name}`");
                let hint = instead(name, Self::NAMES.iter().copied());
                return Err(WorkflowArgumentError::UnknownReward { message, hint });
            }
        };
        let wrong = |error: &dyn fmt::Display| {
            let message = format!("invalid arguments of `{name}`: {error}");
            let hint = "`reward_fn_args` may have `take: all` or `take: last_number`, \
                        `pattern: REGEX` and `ignore_case: true`";
            WorkflowArgumentError::InvalidArguments { message, hint: hint.to_owned() }
        };
        let arguments = Arguments::deserialize(Value::Object(args.clone()));
        let Arguments { take, pattern, ignore_case } = arguments.map_err(|error| wrong(&error))?;
        let part = match (take, pattern) {
            (AnswerExtraction::All, None) => RewardPart::All,
            (AnswerExtraction::LastNumber, None) => RewardPart::LastNumber,
            (AnswerExtraction::All, Some(pattern)) => {
                let built = RegexBuilder::new(&pattern)
                    .case_insensitive(ignore_case)
                    .size_limit(PATTERN_BYTES)
                    .build();
                RewardPart::LastMatch(built.map_err(|error| wrong(&error))?)
            }
            (AnswerExtraction::LastNumber, Some(_)) => {
                return Err(wrong(&"`take` and `pattern` exclude each other"));
            }
        };
        Ok(Self { rule, part, ignore_case })
    }

    /// Returns the reward of an answer: 1 or 0.
    ///
    /// # Errors
    /// A message, if the task has no expected answer.
    pub fn of(&self, answer: &str, expected: Option<&Value>) -> Result<f64, String> {
        let expected = match expected {
            Some(Value::String(text)) => text.clone(),
            Some(value) if !value.is_null() => value.to_string(),
            _ => {
                return Err("the row has no expected answer: set `format.response_key` to the \
                             field that has it"
                    .to_owned());
            }
        };
        let Some(answer) = self.part.of(answer) else { return Ok(0.0) };
        // The expected answer may have text around its number too.
        let expected = match self.part {
            RewardPart::LastNumber => last_number(&expected).unwrap_or(expected),
            RewardPart::All | RewardPart::LastMatch(_) => expected,
        };
        let (answer, expected) = (self.folded(&answer), self.folded(&expected));
        let is_right = match self.rule {
            RewardRule::Exact => answer == expected,
            RewardRule::Contains => answer.contains(&expected),
        };
        Ok(f64::from(u8::from(is_right)))
    }

    fn folded(&self, text: &str) -> String {
        let text = text.trim();
        if self.ignore_case { text.to_lowercase() } else { text.to_owned() }
    }
}

impl RewardPart {
    /// Returns the part of an answer. `None`: the answer has no such part.
    fn of(&self, answer: &str) -> Option<String> {
        match self {
            Self::All => Some(answer.to_owned()),
            Self::LastNumber => last_number(answer),
            Self::LastMatch(pattern) => {
                let last = pattern.captures_iter(answer).last()?;
                Some(last.get(1).or_else(|| last.get(0))?.as_str().to_owned())
            }
        }
    }
}

/// A number without its sign.
static NUMBER: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+").ok());

/// Returns the last number in a text, without commas and superfluous zeros.
fn last_number(text: &str) -> Option<String> {
    let found = NUMBER.as_ref()?.find_iter(text).last()?;
    // A minus after an operand is a subtraction.
    let mut before = text[..found.start()].chars().rev();
    let is_negative = before.next().is_some_and(|sign| matches!(sign, '-' | '\u{2212}'))
        && !before.next().is_some_and(|one| one.is_alphanumeric() || one == ')');
    let digits = found.as_str().replace(',', "");
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let whole = if whole.is_empty() { "0" } else { whole };
    let dot = if fraction.is_empty() { "" } else { "." };
    let sign = if is_negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
    Some(format!("{sign}{whole}{dot}{fraction}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn reward_of(name: &str, args: Value, answer: &str, expected: Value) -> f64 {
        let Value::Object(args) = args else { panic!("arguments are an object") };
        RewardFn::named(name, &args).unwrap().of(answer, Some(&expected)).unwrap()
    }

    #[test]
    fn answer_is_compared_by_its_selected_part() {
        for (name, args, answer, expected, reward) in [
            ("exact_match", json!({}), " 042\n", json!("042"), 1.0),
            ("exact_match", json!({}), "42", json!(42), 1.0),
            ("exact_match", json!({}), "Paris.", json!("paris"), 0.0),
            ("exact_match", json!({ "ignore_case": true }), "PARIS", json!("Paris"), 1.0),
            (
                "exact_match",
                json!({ "pattern": "<a>(.*?)</a>" }),
                "<a>1</a><a> 2 </a>",
                json!("2"),
                1.0,
            ),
            ("exact_match", json!({ "pattern": "<a>(.*?)</a>" }), "2", json!("2"), 0.0),
            ("contains", json!({}), "It is Paris, of course", json!("Paris"), 1.0),
            ("contains", json!({}), "It is Rome", json!("Paris"), 0.0),
            ("exact_match", json!({ "take": "last_number" }), "12 - 5 is 007.", json!(7), 1.0),
            ("exact_match", json!({ "take": "last_number" }), "none", json!(7), 0.0),
            (
                "exact_match",
                json!({ "take": "last_number" }),
                "$1,234.50!",
                json!("#### 1234.5"),
                1.0,
            ),
            ("exact_match", json!({ "take": "last_number" }), "so: -3", json!("-3.0"), 1.0),
            ("exact_match", json!({ "take": "last_number" }), "so: 5-3", json!("-3"), 0.0),
            ("exact_match", json!({ "take": "last_number" }), "-0.0", json!(0), 1.0),
        ] {
            assert_eq!(reward_of(name, args.clone(), answer, expected), reward, "{args} {answer}");
        }
    }

    #[test]
    fn invalid_names_arguments_and_rows_are_refused() {
        let none = Args::new();
        let message = RewardFn::named("exactmatch", &none).unwrap_err().to_string();
        assert!(message.contains("did you mean `exact_match`?"), "{message}");
        for args in [
            json!({ "patern": "x" }),
            json!({ "pattern": "(" }),
            json!({ "pattern": "x", "take": "last_number" }),
            json!({ "take": "first" }),
        ] {
            let Value::Object(args) = args else { panic!("arguments are an object") };
            let error = RewardFn::named("exact_match", &args).unwrap_err();
            let is_invalid = matches!(error, WorkflowArgumentError::InvalidArguments { .. });
            assert!(is_invalid, "{error}");
        }
        let reward = RewardFn::named("exact_match", &none).unwrap();
        assert!(reward.of("42", None).unwrap_err().contains("format.response_key"));
        assert!(reward.of("42", Some(&Value::Null)).is_err());
    }
}
