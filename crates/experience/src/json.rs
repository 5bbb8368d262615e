//! JSON kept as text until it is read.
//!
//! Conversations can be long and most stages forward them unread. As text they are a slice of the
//! payload; a parsed tree takes up to a hundred times the memory.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::FieldProblem;

/// Validated text of one JSON value: UTF-8, nested at most 127 deep. Equality compares text.
#[derive(Clone, PartialEq, Eq)]
pub struct Json {
    text: Bytes,
}

impl Json {
    /// Validates a text.
    pub fn new(text: impl Into<Bytes>) -> Result<Self, FieldProblem> {
        let text = text.into();
        let refused = |error: serde_json::Error| FieldProblem::Json(error.to_string());
        // The parser checks the encoding of strings only, not of the bytes between them.
        std::str::from_utf8(&text).map_err(|error| FieldProblem::Json(error.to_string()))?;
        let mut parser = serde_json::Deserializer::from_slice(&text);
        JsonChecker.deserialize(&mut parser).map_err(refused)?;
        parser.end().map_err(refused)?;
        Ok(Self { text })
    }

    pub fn from_value(value: &Value) -> Result<Self, FieldProblem> {
        Self::new(value.to_string())
    }

    pub fn object() -> Self {
        Self { text: Bytes::from_static(b"{}") }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.text
    }

    pub fn is_object(&self) -> bool {
        self.text.trim_ascii_start().first() == Some(&b'{')
    }

    pub fn value(&self) -> Value {
        // Validated in `new`, so there is nothing to report.
        serde_json::from_slice(&self.text).unwrap_or_default()
    }

    /// Returns an entry of an object without parsing the others into trees; the last one of a
    /// repeated key.
    pub fn get(&self, key: &str) -> Option<Value> {
        if !self.is_object() {
            return None;
        }
        let mut parser = serde_json::Deserializer::from_slice(&self.text);
        parser.deserialize_map(JsonEntry { key }).ok().flatten()
    }

    /// Sets entries of an object. Serializes the whole text again: set several at once.
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

/// Validates a value and keeps nothing. Unlike serde's `IgnoredAny` it checks numbers and escapes
/// as strictly as parsing into a tree.
struct JsonChecker;

impl<'de> DeserializeSeed<'de> for JsonChecker {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! accept {
    ($($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<(), E> {
            Ok(())
        })+
    };
}

impl<'de> Visitor<'de> for JsonChecker {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    accept!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

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

/// Visitor that returns one entry of an object.
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
    fn accepted_texts_parse() {
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
    fn invalid_json_is_refused() {
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
