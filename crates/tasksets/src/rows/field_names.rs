//! Field names of the rows.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Maximum number of names; more indicates data in the wrong place.
const MAX_KEYS: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct FieldNames {
    /// Number of rows in which each field is present and not null. `None`: unknown.
    names: BTreeMap<String, Option<u64>>,
}

impl FieldNames {
    /// Adds a column and its non-null count, if known.
    pub(super) fn add_column(&mut self, name: &str, present: Option<u64>) {
        self.names.insert(name.to_owned(), present);
    }

    fn count(&mut self, name: &str, present: bool) {
        if let Some(count) = self.names.get_mut(name) {
            *count = count.map(|count| count + u64::from(present));
        } else if self.names.len() < MAX_KEYS {
            self.names.insert(name.to_owned(), Some(u64::from(present)));
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (name, count) in other.names {
            let entry = self.names.entry(name).or_insert(Some(0));
            *entry = entry.zip(count).map(|(one, other)| one + other);
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Returns whether some row is known to lack a field.
    pub(crate) fn is_sometimes_absent(&self, name: &str, rows: u64) -> bool {
        match self.names.get(name) {
            Some(count) => count.is_some_and(|count| count < rows),
            None => true,
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.names.keys().map(String::as_str)
    }
}

/// Deserializes the keys of an object, and checks the values as a later read of the row does.
pub(super) struct KeyScan<'a>(pub(super) &'a mut FieldNames);

impl<'de> DeserializeSeed<'de> for KeyScan<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for KeyScan<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the fields of a task")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'_, str>>()? {
            let value: Option<CheckedValue> = map.next_value()?;
            self.0.count(&name, value.is_some());
        }
        Ok(())
    }
}

/// A value that is parsed and dropped. Skipping it would accept text that is not UTF-8, deep
/// nesting and numbers out of range.
struct CheckedValue;

impl<'de> Deserialize<'de> for CheckedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for CheckedValue {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}
