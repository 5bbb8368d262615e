//! A JSON object whose fields are parsed on demand and otherwise copied unchanged, including the
//! digits of numbers.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

const MAX_FIELDS: usize = 1024;

/// Fields in order. The last one of the same name counts.
#[derive(Debug, Default)]
pub(super) struct JsonFields<'a> {
    fields: Vec<(JsonText<'a>, Field<'a>)>,
}

#[derive(Debug)]
enum Field<'a> {
    Received(&'a RawValue),
    Replaced(Cow<'static, str>),
}

impl Field<'_> {
    fn json(&self) -> &str {
        match self {
            Self::Received(value) => value.get(),
            Self::Replaced(json) => json,
        }
    }
}

impl<'a> JsonFields<'a> {
    pub(super) fn read(json: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Returns the JSON of a field that is present and not null.
    pub(super) fn json(&self, name: &str) -> Option<&str> {
        let (_, field) = self.fields.iter().find(|(known, _)| known.0 == name)?;
        Some(field.json()).filter(|json| *json != "null")
    }

    /// Parses a received field. `None`: absent, null or replaced.
    pub(super) fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, String> {
        match self.fields.iter().find(|(known, _)| known.0 == name) {
            Some((_, Field::Received(value))) => {
                serde_json::from_str(value.get()).map_err(|error| format!("{name}: {error}"))
            }
            _ => Ok(None),
        }
    }

    /// Replaces a field, or appends it.
    pub(super) fn set(&mut self, name: &'static str, json: impl Into<Cow<'static, str>>) {
        let json = Field::Replaced(json.into());
        match self.fields.iter_mut().find(|(known, _)| known.0 == name) {
            Some((_, field)) => *field = json,
            None => self.fields.push((JsonText(Cow::Borrowed(name)), json)),
        }
    }

    pub(super) fn set_text(&mut self, name: &'static str, text: &str) {
        self.set(name, serde_json::Value::from(text).to_string());
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

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, field)| (name.0.as_ref(), field.json()))
    }

    pub(super) fn write(&self, out: &mut String) {
        out.push('{');
        for (number, (name, value)) in self.iter().enumerate() {
            if number > 0 {
                out.push(',');
            }
            write_text(name, out);
            out.push(':');
            out.push_str(value);
        }
        out.push('}');
    }

    pub(super) fn to_json(&self) -> String {
        let length = self.iter().map(|(name, json)| name.len() + json.len() + 4).sum::<usize>();
        let mut out = String::with_capacity(length + 2);
        self.write(&mut out);
        out
    }
}

fn write_text(text: &str, out: &mut String) {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

pub(super) fn write_list(items: &[JsonFields<'_>]) -> String {
    let mut out = String::from("[");
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            out.push(',');
        }
        item.write(&mut out);
    }
    out.push(']');
    out
}

impl<'de> Deserialize<'de> for JsonFields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = JsonFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields: Vec<(JsonText<'de>, Field<'de>)> = Vec::with_capacity(8);
                while let Some(name) = map.next_key::<JsonText<'de>>()? {
                    let value = Field::Received(map.next_value::<&'de RawValue>()?);
                    match fields.iter_mut().find(|(known, _)| known.0 == name.0) {
                        Some((_, field)) => *field = value,
                        None => fields.push((name, value)),
                    }
                    if fields.len() > MAX_FIELDS {
                        return Err(A::Error::custom("an object has too many fields"));
                    }
                }
                Ok(JsonFields { fields })
            }
        }
        from.deserialize_map(Object)
    }
}

/// A text, borrowed where it has no escapes.
#[derive(Debug, Deserialize)]
pub(super) struct JsonText<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);
