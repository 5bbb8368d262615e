//! Format of log lines: text for people, JSON for programs.

use std::fmt::Write as _;
use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tracing::Level;

use crate::styled_line::{StyledLine, TextStyle};

/// Returns a time as RFC 3339 in UTC, to the second.
pub fn timestamp(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns a log line as JSON; `fields` is left out if it is empty.
pub fn json_line(
    time: SystemTime,
    level: Level,
    message: &str,
    fields: Map<String, Value>,
) -> String {
    let level = level.as_str().to_ascii_lowercase();
    let mut line = json!({
        "time": timestamp(time), "event": "log", "level": level, "message": message,
    });
    if !fields.is_empty() {
        line["fields"] = Value::Object(fields);
    }
    line.to_string()
}

/// Field that text omits: the id of an attempt is unique over all restarts of a job, so that it has
/// 13 digits. Batch, task and run say the same to people.
const INTERNAL: &str = "attempt";

/// Returns a log line as text: the message, then `name=value` for each field. Further lines of a
/// message are indented. `with_date`: whether the date precedes the time.
pub fn text_lines(
    time: SystemTime,
    level: Level,
    message: &str,
    fields: &Map<String, Value>,
    with_date: bool,
) -> Vec<StyledLine> {
    let mut message = message.to_owned();
    for (name, value) in fields.iter().filter(|(name, _)| *name != INTERNAL) {
        // Writing to a string cannot fail.
        let _ = match value {
            Value::String(text) => write!(message, " {name}={text}"),
            value => write!(message, " {name}={value}"),
        };
    }
    let timestamp = timestamp(time);
    let timestamp = if with_date { &timestamp } else { &timestamp[DATE_CHARS..] };
    let style = match level {
        Level::ERROR => TextStyle::Red,
        Level::WARN => TextStyle::Yellow,
        Level::INFO => TextStyle::Cyan,
        _ => TextStyle::Faint,
    };
    let prefix = |timestamp: &str, level: &str| {
        let line = StyledLine::new().with(timestamp, TextStyle::Faint).text(" ");
        line.with(format!("{level:<5}"), style).text(" ")
    };
    let mut lines = Vec::new();
    for text in message.lines() {
        let prefix = match lines.is_empty() {
            true => prefix(timestamp, level.as_str()),
            false => prefix(&" ".repeat(timestamp.len()), ""),
        };
        lines.push(prefix.text(text));
    }
    lines
}

/// Characters of the date of a timestamp, with the `T` behind it.
const DATE_CHARS: usize = 11;

/// Returns the text notice about log lines that were dropped.
pub fn dropped_text(count: u64) -> String {
    let time = timestamp(SystemTime::now());
    format!("{time} WARN  {count} log lines dropped: standard error was not read fast enough\n")
}

/// Returns the JSON notice about log lines that were dropped.
pub fn dropped_json(count: u64) -> String {
    let message = "log lines dropped: standard error was not read fast enough";
    let fields = Map::from_iter([("lines".to_owned(), count.into())]);
    json_line(SystemTime::now(), Level::WARN, message, fields) + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn further_lines_of_a_message_are_indented() {
        let lines = text_lines(UNIX_EPOCH, Level::WARN, "one\ntwo", &Map::new(), false);
        let lines: Vec<String> = lines.iter().map(StyledLine::to_string).collect();
        assert_eq!(lines, ["00:00:00Z WARN  one", "                two"]);
    }

    #[test]
    fn fields_follow_the_message_in_text_and_are_an_object_in_json() {
        let fields = || {
            let pairs = [("a", 1.into()), ("attempt", (1_u64 << 40).into()), ("b", "x y".into())];
            Map::from_iter(pairs.map(|(name, value)| (name.to_owned(), value)))
        };
        let lines = text_lines(UNIX_EPOCH, Level::INFO, "message", &fields(), true);
        let lines: Vec<String> = lines.iter().map(StyledLine::to_string).collect();
        assert_eq!(lines, ["1970-01-01T00:00:00Z INFO  message a=1 b=x y"]);
        let line = json_line(UNIX_EPOCH, Level::INFO, "message", fields());
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            line,
            json!({
                "time": "1970-01-01T00:00:00Z", "event": "log", "level": "info",
                "message": "message", "fields": {"a": 1, "attempt": 1_u64 << 40, "b": "x y"},
            })
        );
    }
}
