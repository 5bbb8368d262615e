//! A JSON object whose fields are parsed on demand and otherwise copied unchanged, including the
//! digits of numbers.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

use crate::json_shape::JsonShape;

const MAX_FIELDS: usize = 1024;

/// Maximum parts of a value, such as a message with tool calls.
const MAX_VALUE_NODES: u64 = 100_000;

/// Fields in order. The last one of the same name counts.
#[derive(Debug, Default)]
pub(super) struct JsonFields<'a> {
    fields: Vec<(JsonText<'a>, Field<'a>)>,
}

#[derive(Debug)]
enum Field<'a> {
    Received(&'a str),
    Replaced(Cow<'static, str>),
    /// The same in every event of a stream.
    Shared(Arc<str>),
}

impl Field<'_> {
    fn json(&self) -> &str {
        match self {
            Self::Received(json) => json,
            Self::Replaced(json) => json,
            Self::Shared(json) => json,
        }
    }
}

impl<'a> JsonFields<'a> {
    /// Parses the outline of an object. serde's `RawValue` would do the same, but its feature makes
    /// every parser of the program interpret a certain key, see `JsonShape::has_reserved_key`.
    pub(super) fn read(json: &'a str) -> Result<Self, String> {
        let mut cursor = JsonCursor { rest: json };
        let fields = Self::next(&mut cursor)?;
        cursor.end()?;
        Ok(fields)
    }

    fn next(cursor: &mut JsonCursor<'a>) -> Result<Self, String> {
        let mut fields: Vec<(JsonText<'a>, Field<'a>)> = Vec::with_capacity(8);
        cursor.expect('{', "an object")?;
        let mut is_first = true;
        while cursor.has_next('}', &mut is_first)? {
            let (name, _) = cursor.value::<JsonText<'a>>()?;
            cursor.expect(':', "a colon")?;
            let value = Field::Received(cursor.value::<IgnoredAny>()?.1);
            match fields.iter_mut().find(|(known, _)| known.0 == name.0) {
                Some((_, field)) => *field = value,
                None => fields.push((name, value)),
            }
            if fields.len() > MAX_FIELDS {
                return Err("an object has too many fields".to_owned());
            }
        }
        Ok(Self { fields })
    }

    /// Parses the outlines of a list of objects.
    fn read_list(json: &'a str) -> Result<Vec<Self>, String> {
        let mut cursor = JsonCursor { rest: json };
        let mut items = Vec::new();
        cursor.expect('[', "a list")?;
        let mut is_first = true;
        while cursor.has_next(']', &mut is_first)? {
            items.push(Self::next(&mut cursor)?);
        }
        cursor.end()?;
        Ok(items)
    }

    /// Returns the JSON of a field that is present and not null.
    pub(super) fn json(&self, name: &str) -> Option<&str> {
        let (_, field) = self.fields.iter().find(|(known, _)| known.0 == name)?;
        Some(field.json()).filter(|json| *json != "null")
    }

    /// Parses a received field. `None`: absent, null or replaced.
    pub(super) fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, String> {
        match self.received(name) {
            Some(json) => serde_json::from_str(json).map_err(|error| format!("{name}: {error}")),
            None => Ok(None),
        }
    }

    /// Parses the outline of a received object. `None`: absent, null or replaced.
    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, String> {
        let json = self.received(name).filter(|json| *json != "null");
        json.map(Self::read).transpose().map_err(|error| format!("{name}: {error}"))
    }

    /// Parses the outlines of a received list of objects. `None`: absent, null or replaced.
    pub(super) fn list(&self, name: &str) -> Result<Option<Vec<Self>>, String> {
        let json = self.received(name).filter(|json| *json != "null");
        json.map(Self::read_list).transpose().map_err(|error| format!("{name}: {error}"))
    }

    /// Parses a received field as a value, unless it has too many parts.
    pub(super) fn value(&self, name: &str) -> Result<Option<Value>, String> {
        let json = self.received(name).filter(|json| *json != "null");
        json.map(read_value).transpose().map_err(|error| format!("{name}: {error}"))
    }

    fn received(&self, name: &str) -> Option<&'a str> {
        match self.fields.iter().find(|(known, _)| known.0 == name)? {
            (_, Field::Received(json)) => Some(json),
            _ => None,
        }
    }

    /// Replaces a field, or appends it.
    pub(super) fn set(&mut self, name: &'static str, json: impl Into<Cow<'static, str>>) {
        self.set_field(name, Field::Replaced(json.into()));
    }

    pub(super) fn set_shared(&mut self, name: &'static str, json: &Arc<str>) {
        self.set_field(name, Field::Shared(Arc::clone(json)));
    }

    fn set_field(&mut self, name: &'static str, json: Field<'a>) {
        match self.fields.iter_mut().find(|(known, _)| known.0 == name) {
            Some((_, field)) => *field = json,
            None => self.fields.push((JsonText(Cow::Borrowed(name)), json)),
        }
    }

    /// Replaces a present field by null.
    pub(super) fn blank(&mut self, name: &str) {
        if let Some((_, field)) = self.fields.iter_mut().find(|(known, _)| known.0 == name) {
            *field = Field::Replaced(Cow::Borrowed("null"));
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.fields.retain(|(known, _)| known.0 != name);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, field)| (name.0.as_ref(), field.json()))
    }

    fn write(&self, choices: Option<&[JsonFields<'_>]>, out: &mut String) {
        out.push('{');
        for (number, (name, value)) in self.iter().enumerate() {
            if number > 0 {
                out.push(',');
            }
            write_text(name, out);
            out.push(':');
            match choices {
                Some(choices) if name == "choices" => write_list(choices, out),
                _ => out.push_str(value),
            }
        }
        out.push('}');
    }

    fn written_length(&self) -> usize {
        self.iter().map(|(name, json)| name.len() + json.len() + 4).sum::<usize>() + 2
    }

    pub(super) fn to_json(&self) -> String {
        let mut out = String::with_capacity(self.written_length());
        self.write(None, &mut out);
        out
    }

    /// Returns the JSON with these elements in the received field `choices`.
    pub(super) fn to_json_with(&self, choices: &[JsonFields<'_>]) -> String {
        // The received choices are at least as long.
        let mut out = String::with_capacity(self.written_length());
        self.write(Some(choices), &mut out);
        out
    }
}

/// Parses a value. Parsed values may take a hundred times the memory of their text, which is
/// therefore limited.
pub(super) fn read_value<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, String> {
    // Every part has at least one character.
    let is_large = json.len() as u64 > MAX_VALUE_NODES;
    if is_large && JsonShape::of(json.as_bytes()).nodes > MAX_VALUE_NODES {
        return Err(format!("it has more than {MAX_VALUE_NODES} JSON values"));
    }
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn write_text(text: &str, out: &mut String) {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&Value::from(text).to_string());
    }
}

/// Serializes a text.
pub(super) fn text_json(text: &str) -> Arc<str> {
    let mut out = String::with_capacity(text.len() + 2);
    write_text(text, &mut out);
    out.into()
}

fn write_list(items: &[JsonFields<'_>], out: &mut String) {
    out.push('[');
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            out.push(',');
        }
        item.write(None, out);
    }
    out.push(']');
}

/// Returns whether a JSON text is an object without fields.
pub(super) fn is_empty_object(json: &str) -> bool {
    let inside = json.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|inside| inside.trim_ascii().is_empty())
}

/// The rest of a JSON text.
#[derive(Debug)]
struct JsonCursor<'a> {
    rest: &'a str,
}

impl<'a> JsonCursor<'a> {
    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\n', '\r', '\t']);
    }

    /// Skips a character. Returns whether it comes next.
    fn skip(&mut self, wanted: char) -> bool {
        self.skip_spaces();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, wanted: char, name: &str) -> Result<(), String> {
        if self.skip(wanted) {
            return Ok(());
        }
        let found = self.rest.chars().next();
        Err(found.map_or_else(
            || format!("{name} is missing at the end"),
            |found| format!("expected {name}, found {found:?}"),
        ))
    }

    /// Skips the comma before a further member, or the end of the object or list.
    fn has_next(&mut self, end: char, is_first: &mut bool) -> Result<bool, String> {
        if self.skip(end) {
            return Ok(false);
        }
        if !std::mem::take(is_first) {
            self.expect(',', "a comma")?;
        }
        Ok(true)
    }

    /// Parses a value. Returns its text too.
    fn value<T: Deserialize<'a>>(&mut self) -> Result<(T, &'a str), String> {
        self.skip_spaces();
        let mut values = Deserializer::from_str(self.rest).into_iter::<T>();
        let value = values.next().ok_or("the text ends early")?;
        let value = value.map_err(|error| error.to_string())?;
        let (text, rest) = self.rest.split_at(values.byte_offset());
        self.rest = rest;
        Ok((value, text))
    }

    fn end(&mut self) -> Result<(), String> {
        self.skip_spaces();
        match self.rest {
            "" => Ok(()),
            _ => Err("there is more text behind the value".to_owned()),
        }
    }
}

/// A text, borrowed where it has no escapes.
#[derive(Debug, Deserialize)]
pub(super) struct JsonText<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::JsonFields;

    /// Text whose fields are values of all types, with spaces wherever they are valid.
    const SPACED: &str =
        " {\n \"a\" : 1.50 ,\t\"b\":[ 1 , \"}\" ],\"\\u0063\": null , \"d\":{\"e\":\"f\"}\r}\n";

    #[test]
    fn fields_are_the_texts_of_their_values() {
        let fields = JsonFields::read(SPACED).unwrap();
        let found: Vec<(&str, &str)> = fields.iter().collect();
        let expected =
            [("a", "1.50"), ("b", "[ 1 , \"}\" ]"), ("c", "null"), ("d", "{\"e\":\"f\"}")];
        assert_eq!(found, expected);
        assert_eq!(fields.object("d").unwrap().unwrap().get("e").unwrap(), Some("f".to_owned()));
        assert!(fields.object("c").unwrap().is_none());
        assert!(fields.list("b").is_err());
    }

    #[test]
    fn invalid_texts_are_refused() {
        for end in 0..SPACED.trim_end().len() {
            assert!(JsonFields::read(&SPACED[..end]).is_err(), "{end}");
        }
        for text in
            ["{\"a\":1,}", "{,}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "{} {}", "[]", "{\"a\":01}"]
        {
            assert!(JsonFields::read(text).is_err(), "{text}");
        }
    }
}
