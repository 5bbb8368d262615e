//! A JSON object whose fields are looked at one by one and otherwise copied as they came: nothing
//! that the gateway does not understand changes on its way, not even the digits of a number.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// How many fields an object of a server may have.
const MAX_FIELDS: usize = 1024;

/// The fields of an object, in the order in which they came. The last of the same name counts.
#[derive(Debug, Default)]
pub(super) struct JsonFields<'a> {
    fields: Vec<(JsonText<'a>, Field<'a>)>,
}

/// The value of a field.
#[derive(Debug)]
enum Field<'a> {
    /// As it came.
    Theirs(&'a RawValue),
    /// What we put in its place: JSON.
    Ours(Cow<'static, str>),
}

impl Field<'_> {
    fn json(&self) -> &str {
        match self {
            Self::Theirs(value) => value.get(),
            Self::Ours(json) => json,
        }
    }
}

impl<'a> JsonFields<'a> {
    /// Reads an object.
    pub(super) fn read(json: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Returns the JSON of a field that is there and not null.
    pub(super) fn json(&self, name: &str) -> Option<&str> {
        let (_, field) = self.fields.iter().find(|(held, _)| held.0 == name)?;
        Some(field.json()).filter(|json| *json != "null")
    }

    /// Reads a field as it came; none if it is not there, null or already replaced.
    pub(super) fn get<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, String> {
        match self.fields.iter().find(|(held, _)| held.0 == name) {
            Some((_, Field::Theirs(value))) => {
                serde_json::from_str(value.get()).map_err(|error| format!("{name}: {error}"))
            }
            _ => Ok(None),
        }
    }

    /// Puts JSON in the place of a field, or at the end.
    pub(super) fn set(&mut self, name: &'static str, json: impl Into<Cow<'static, str>>) {
        let json = Field::Ours(json.into());
        match self.fields.iter_mut().find(|(held, _)| held.0 == name) {
            Some((_, field)) => *field = json,
            None => self.fields.push((JsonText(Cow::Borrowed(name)), json)),
        }
    }

    /// Puts a text in the place of a field, or at the end.
    pub(super) fn set_text(&mut self, name: &'static str, text: &str) {
        self.set(name, serde_json::Value::from(text).to_string());
    }

    /// Puts null in the place of a field, if it is there.
    pub(super) fn blank(&mut self, name: &str) {
        if let Some((_, field)) = self.fields.iter_mut().find(|(held, _)| held.0 == name) {
            *field = Field::Ours(Cow::Borrowed("null"));
        }
    }

    /// Removes a field.
    pub(super) fn remove(&mut self, name: &str) {
        self.fields.retain(|(held, _)| held.0 != name);
    }

    /// Whether there is no field at all.
    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns the names and the JSON of all fields.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, field)| (name.0.as_ref(), field.json()))
    }

    /// Writes the object.
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

    /// Returns the object's JSON.
    pub(super) fn to_json(&self) -> String {
        let length = self.iter().map(|(name, json)| name.len() + json.len() + 4).sum::<usize>();
        let mut out = String::with_capacity(length + 2);
        self.write(&mut out);
        out
    }
}

/// Writes a text as JSON.
fn write_text(text: &str, out: &mut String) {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}

/// Writes a list of objects.
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
                    let value = Field::Theirs(map.next_value::<&'de RawValue>()?);
                    match fields.iter_mut().find(|(held, _)| held.0 == name.0) {
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

/// A text, borrowed where it holds no escapes.
#[derive(Debug)]
pub(super) struct JsonText<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for JsonText<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ResponseFields;
        impl<'de> Visitor<'de> for ResponseFields {
            type Value = JsonText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(JsonText(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(JsonText(Cow::Owned(text.to_owned())))
            }
        }
        from.deserialize_str(ResponseFields)
    }
}
