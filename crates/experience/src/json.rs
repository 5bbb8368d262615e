//! JSON that stays text until somebody looks into it.
//!
//! Conversations can be long and most stages hand them on unread. As text they are a slice of the
//! payload; as a tree they would take up to a hundred times the memory.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::FieldProblem;

/// The text of one JSON value, which was checked: UTF-8, nested at most 127 deep.
///
/// Two of them are equal if their texts are.
#[derive(Clone, PartialEq, Eq)]
pub struct Json {
    text: Bytes,
}

impl Json {
    /// Takes a text as it is, if it is JSON.
    pub fn new(text: impl Into<Bytes>) -> Result<Self, FieldProblem> {
        let text = text.into();
        let refused = |error: serde_json::Error| FieldProblem::Json(error.to_string());
        // The parser looks at the encoding of strings, but not of what stands between them.
        std::str::from_utf8(&text).map_err(|error| FieldProblem::Json(error.to_string()))?;
        let mut parser = serde_json::Deserializer::from_slice(&text);
        JsonChecker.deserialize(&mut parser).map_err(refused)?;
        parser.end().map_err(refused)?;
        Ok(Self { text })
    }

    /// Writes a value as text.
    pub fn from_value(value: &Value) -> Result<Self, FieldProblem> {
        Self::new(value.to_string())
    }

    /// Returns the object without entries.
    pub fn object() -> Self {
        Self { text: Bytes::from_static(b"{}") }
    }

    /// Returns the text.
    pub fn bytes(&self) -> &Bytes {
        &self.text
    }

    /// Returns whether it is an object.
    pub fn is_object(&self) -> bool {
        self.text.trim_ascii_start().first() == Some(&b'{')
    }

    /// Reads the text.
    pub fn value(&self) -> Value {
        // It was read once, when it was made, so there is nothing to report.
        serde_json::from_slice(&self.text).unwrap_or_default()
    }

    /// Returns an entry of an object, without building the others; the last of several with the
    /// same key.
    pub fn get(&self, key: &str) -> Option<Value> {
        if !self.is_object() {
            return None;
        }
        let mut parser = serde_json::Deserializer::from_slice(&self.text);
        parser.deserialize_map(JsonEntry { key }).ok().flatten()
    }

    /// Sets entries of an object. The text is written anew: set several at once.
    pub fn insert(
        &mut self,
        entries: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<(), FieldProblem> {
        let Value::Object(mut object) = self.value() else { return Err(FieldProblem::NotObject) };
        object.extend(entries);
        *self = Self::from_value(&Value::Object(object))?;
        Ok(())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Json({self})")
    }
}

/// Reads a value to its end and keeps nothing. Unlike serde's `IgnoredAny` it looks at numbers and
/// escapes as closely as whoever builds a tree.
struct JsonChecker;

impl<'de> DeserializeSeed<'de> for JsonChecker {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonChecker {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while elements.next_element_seed(Self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while entries.next_key_seed(Self)?.is_some() {
            entries.next_value_seed(Self)?;
        }
        Ok(())
    }
}

/// Finds one entry of an object.
struct JsonEntry<'a> {
    key: &'a str,
}

impl<'de> Visitor<'de> for JsonEntry<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<Value>, A::Error> {
        let mut found = None;
        while let Some(key) = entries.next_key::<String>()? {
            if key == self.key {
                found = Some(entries.next_value()?);
            } else {
                entries.next_value::<serde::de::IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_accepted_can_be_read() {
        for text in
            ["null", " [1, -2.5e3, \"\\u00e9\"] ", "{\"a\": {\"b\": []}}", "18446744073709551616"]
        {
            let json = Json::new(text).unwrap();
            assert_eq!(json.value(), serde_json::from_str::<Value>(text).unwrap());
            assert_eq!(json.to_string(), text);
        }
        let deepest = "[".repeat(127) + &"]".repeat(127);
        assert!(Json::new(deepest).unwrap().value().is_array());
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let deep = "[".repeat(128) + &"]".repeat(128);
        for text in ["", "{", "NaN", "1e999", "\"\\ud800\"", "1 2", "{\"a\"}", &deep] {
            assert!(matches!(Json::new(text.to_owned()), Err(FieldProblem::Json(_))), "{text}");
        }
        assert!(matches!(Json::new(&b"\"\xff\""[..]), Err(FieldProblem::Json(_))));
    }

    #[test]
    fn entries_are_found() {
        let json = Json::from_value(&json!({"a": 1, "b": {"a": 2}})).unwrap();
        assert_eq!(json.get("b"), Some(json!({"a": 2})));
        assert_eq!(json.get("c"), None);
        assert_eq!(Json::new("[1]").unwrap().get("a"), None);
    }

    #[test]
    fn entries_are_set() {
        let mut json = Json::new(r#"{"a": 1}"#).unwrap();
        json.insert([("b".to_owned(), json!(2)), ("a".to_owned(), json!(3))]).unwrap();
        assert_eq!(json.to_string(), r#"{"a":3,"b":2}"#);
        let refused = Json::new("[]").unwrap().insert([]);
        assert_eq!(refused, Err(FieldProblem::NotObject));
    }
}
