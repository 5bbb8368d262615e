//! Keys, types, defaults and bounds of the configuration, read from the JSON Schema that is derived
//! from the types.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::seconds::ConfigSeconds;

/// Type of a value.
#[derive(Debug, PartialEq)]
pub(super) enum KeySchema {
    /// A closed set of keys. `shorthand`: the key that a scalar in place of the section sets.
    Section {
        keys: BTreeMap<String, SchemaKey>,
        shorthand: Option<String>,
    },
    /// Any keys, all with values of one type.
    Map(Box<Self>),
    List {
        item: Box<Self>,
        one_or_many: bool,
    },
    Choice(Vec<ValueChoice>),
    Integer(Bounds),
    Number(Bounds),
    Text,
    Flag,
    Any,
}

#[derive(Debug, PartialEq)]
pub(super) struct SchemaKey {
    pub(super) shape: KeySchema,
    pub(super) nullable: bool,
    pub(super) default: Value,
    pub(super) about: String,
}

#[derive(Debug, PartialEq)]
pub(super) struct ValueChoice {
    pub(super) name: String,
    pub(super) about: String,
}

/// Range of a number.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Bounds {
    pub(super) min: Option<f64>,
    pub(super) above: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) below: Option<f64>,
    pub(super) seconds: bool,
}

/// Schema of the whole configuration.
pub(super) static SHAPE: LazyLock<KeySchema> = LazyLock::new(|| KeySchema::read(&SCHEMA).0);

/// All keys as dotted paths, without list indices.
pub(super) static PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut paths = Vec::new();
    SHAPE.collect_paths("", &mut paths);
    paths
});

/// The JSON Schema as derived from the types.
pub(super) static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<super::Config>().to_value()
});

impl KeySchema {
    /// Converts a JSON Schema; the flag tells whether null is allowed.
    fn read(schema: &Value) -> (Self, bool) {
        let Some(object) = schema.as_object() else { return (Self::Any, true) };
        if let Some(alternatives) = list(object, "anyOf") {
            let is_null = |one: &&Value| one.get("type").is_some_and(|kind| kind == "null");
            let nullable = alternatives.iter().any(|one| is_null(&one));
            let shape = alternatives.iter().find(|one| !is_null(one));
            return (shape.map_or(Self::Any, |shape| Self::read(shape).0), nullable);
        }
        if let Some(choices) = list(object, "oneOf") {
            let choice =
                |one: &Value| Some(ValueChoice { name: text(one, "const")?, about: about(one) });
            return (Self::Choice(choices.iter().filter_map(choice).collect()), false);
        }
        let (kind, nullable) = match object.get("type") {
            Some(Value::String(kind)) => (kind.as_str(), false),
            Some(Value::Array(kinds)) => {
                (kinds.first().and_then(Value::as_str).unwrap_or_default(), true)
            }
            _ => return (Self::Any, true),
        };
        let shape = match kind {
            "object" => Self::read_object(object),
            "array" => Self::List {
                item: Box::new(object.get("items").map_or(Self::Any, |item| Self::read(item).0)),
                one_or_many: object.contains_key("x-one-or-many"),
            },
            "integer" => Self::Integer(Bounds::read(object)),
            "number" => Self::Number(Bounds::read(object)),
            "boolean" => Self::Flag,
            _ => Self::Text,
        };
        (shape, nullable)
    }

    fn read_object(object: &Map<String, Value>) -> Self {
        let Some(properties) = object.get("properties").and_then(Value::as_object) else {
            let values = object.get("additionalProperties");
            return Self::Map(Box::new(values.map_or(Self::Any, |values| Self::read(values).0)));
        };
        let key = |schema: &Value| {
            let (shape, nullable) = Self::read(schema);
            let default = schema.get("default").cloned().unwrap_or_default();
            SchemaKey { shape, nullable, default, about: about(schema) }
        };
        Self::Section {
            keys: properties.iter().map(|(name, schema)| (name.clone(), key(schema))).collect(),
            shorthand: object.get("x-shorthand").and_then(Value::as_str).map(str::to_owned),
        }
    }

    fn collect_paths(&self, path: &str, paths: &mut Vec<String>) {
        match self {
            Self::Section { keys, .. } => {
                for (name, key) in keys {
                    let path = join(path, name);
                    key.shape.collect_paths(&path, paths);
                    paths.push(path);
                }
            }
            Self::List { item, .. } => item.collect_paths(path, paths),
            Self::Map(_) | Self::Choice(_) | Self::Integer(_) | Self::Number(_) => {}
            Self::Text | Self::Flag | Self::Any => {}
        }
    }

    /// Describes the type in messages.
    pub(super) fn expected(&self) -> String {
        match self {
            Self::Section { .. } | Self::Map(_) => "keys and values below it".to_owned(),
            Self::List { .. } => "a list".to_owned(),
            Self::Choice(choices) => {
                let names: Vec<&str> = choices.iter().map(|choice| choice.name.as_str()).collect();
                format!("one of {}", names.join(", "))
            }
            Self::Integer(_) => "a whole number".to_owned(),
            Self::Number(bounds) if bounds.seconds => "a number of seconds".to_owned(),
            Self::Number(_) => "a number".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Any => "a value".to_owned(),
        }
    }
}

impl Bounds {
    fn read(object: &Map<String, Value>) -> Self {
        let number = |name| object.get(name).and_then(Value::as_f64);
        let by_format = match object.get("format").and_then(Value::as_str) {
            Some("uint8") => Some(f64::from(u8::MAX)),
            Some("uint16") => Some(f64::from(u16::MAX)),
            Some("uint32") => Some(f64::from(u32::MAX)),
            Some("int32") => Some(f64::from(i32::MAX)),
            _ => None,
        };
        Self {
            min: number("minimum"),
            above: number("exclusiveMinimum"),
            max: number("maximum").or(by_format),
            below: number("exclusiveMaximum"),
            seconds: object.get("x-unit").is_some_and(|unit| unit == "seconds"),
        }
    }

    pub(super) fn allow(&self, number: f64) -> bool {
        self.min.is_none_or(|min| number >= min)
            && self.above.is_none_or(|above| number > above)
            && self.max.is_none_or(|max| number <= max)
            && self.below.is_none_or(|below| number < below)
    }

    /// Describes the range in messages, without bounds that follow from the integer type. Empty:
    /// no bounds.
    pub(super) fn described(&self) -> String {
        let technical = if self.seconds { ConfigSeconds::MAX } else { f64::from(u32::MAX) };
        let max = self.max.filter(|max| *max < technical);
        Self { max, ..*self }.described_all()
    }

    /// Describes the range in messages, with all bounds.
    pub(super) fn described_all(&self) -> String {
        if let (None, Some(min), Some(max), None) = (self.above, self.min, self.max, self.below) {
            return format!("from {min} to {max}");
        }
        let low = match (self.above, self.min) {
            (Some(above), _) => Some(format!("above {above}")),
            (None, Some(min)) => Some(format!("at least {min}")),
            (None, None) => None,
        };
        let high = match (self.below, self.max) {
            (Some(below), _) => Some(format!("below {below}")),
            (None, Some(max)) => Some(format!("at most {max}")),
            (None, None) => None,
        };
        [low, high].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

/// Joins a dotted path and a key.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn list<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Vec<Value>> {
    object.get(name).and_then(Value::as_array)
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn about(schema: &Value) -> String {
    let about = text(schema, "description").unwrap_or_default();
    about.split_whitespace().collect::<Vec<_>>().join(" ")
}
