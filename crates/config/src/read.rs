//! Conversion of [`ConfigNode`]s to values of known keys. The reader reports all problems at once
//! and records the source span of each key.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::{ConfigProblem, ConfigWarning, SourceSpan};
use super::key_schema::{Bounds, KeySchema, PATHS, SHAPE, SchemaKey, ValueChoice, join};
use super::node::{ConfigNode, NodeEntry, Scalar, Tree};
use super::trinity;
use rollway_base::suggest::{is_misspelled, nearest};

#[derive(Default)]
pub(super) struct ConfigReader {
    pub(super) problems: Vec<ConfigProblem>,
    pub(super) warnings: Vec<ConfigWarning>,
    pub(super) origins: Origins,
}

/// Origins of the given keys.
pub(super) type Origins = BTreeMap<String, Origin>;

/// Source span and value of a key as it was read. No value: a section or a list.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) span: Option<SourceSpan>,
    pub(super) value: Option<Value>,
}

/// Path of a key: as shown in messages, and without list indices for lookups.
#[derive(Clone, Default)]
struct Path {
    shown: String,
    pattern: String,
}

impl Path {
    fn key(&self, key: &str) -> Self {
        Self { shown: join(&self.shown, key), pattern: join(&self.pattern, key) }
    }

    fn item(&self, index: usize) -> Self {
        Self { shown: format!("{}[{index}]", self.shown), pattern: self.pattern.clone() }
    }
}

impl ConfigReader {
    /// Reads a configuration. The value is incomplete if there are problems.
    pub(super) fn root(&mut self, node: &ConfigNode) -> Value {
        let path = Path::default();
        match &node.tree {
            Tree::Scalar(scalar) if scalar.is_null() => Value::Object(Map::new()),
            Tree::Map(_) => self.value(node, &SHAPE, &path),
            Tree::Scalar(_) | Tree::List(_) => {
                let message = format!("expected keys and values, got {}", node.display_text());
                let hint = "a configuration begins with lines like `mode: explore`";
                self.problems
                    .push(ConfigProblem::new("", message).at(node.span.as_ref()).hint(hint));
                Value::Null
            }
        }
    }

    fn value(&mut self, node: &ConfigNode, shape: &KeySchema, path: &Path) -> Value {
        match (shape, &node.tree) {
            (KeySchema::Section { keys, .. }, Tree::Map(entries)) => {
                self.section(entries, keys, path)
            }
            (KeySchema::Section { shorthand: Some(key), .. }, Tree::Scalar(scalar))
                if !scalar.is_null() =>
            {
                let entry = NodeEntry { key: key.clone(), span: None, node: node.clone() };
                self.value(&ConfigNode::map(vec![entry]), shape, path)
            }
            (KeySchema::Map(inner), Tree::Map(entries)) => entries
                .iter()
                .map(|entry| {
                    let value = self.value(&entry.node, inner, &path.key(&entry.key));
                    (entry.key.clone(), value)
                })
                .collect::<Map<_, _>>()
                .into(),
            (KeySchema::List { item, .. }, Tree::List(nodes)) => nodes
                .iter()
                .enumerate()
                .map(|(index, node)| self.item(node, item, &path.item(index)))
                .collect(),
            // A section, map or list whose content is commented out.
            (KeySchema::Section { .. } | KeySchema::Map(_), Tree::Scalar(scalar))
                if scalar.is_null() =>
            {
                Value::Object(Map::new())
            }
            (KeySchema::List { .. }, Tree::Scalar(scalar)) if scalar.is_null() => {
                Value::Array(Vec::new())
            }
            (KeySchema::List { item, one_or_many: true }, Tree::Scalar(_)) => {
                Value::Array(vec![self.value(node, item, path)])
            }
            (KeySchema::Any, Tree::Map(entries)) => entries
                .iter()
                .map(|entry| (entry.key.clone(), self.value(&entry.node, shape, path)))
                .collect::<Map<_, _>>()
                .into(),
            (KeySchema::Any, Tree::List(nodes)) => {
                nodes.iter().map(|node| self.value(node, shape, path)).collect()
            }
            (shape, Tree::Scalar(scalar)) => self.scalar(scalar, node, shape, path),
            (shape, Tree::Map(_) | Tree::List(_)) => self.mismatch(node, shape, path),
        }
    }

    fn item(&mut self, node: &ConfigNode, shape: &KeySchema, path: &Path) -> Value {
        let origin = Origin { span: node.span.clone(), value: None };
        self.origins.insert(path.shown.clone(), origin);
        self.value(node, shape, path)
    }

    fn section(
        &mut self,
        entries: &[NodeEntry],
        keys: &BTreeMap<String, SchemaKey>,
        path: &Path,
    ) -> Value {
        let mut section = Map::new();
        for entry in entries {
            let path = path.key(&entry.key);
            if let Some(key) = keys.get(&entry.key) {
                let before = self.problems.len();
                let value = self.value_of_key(entry, key, &path);
                if self.problems.len() == before {
                    self.record_origin(entry, &path, &value);
                    section.insert(entry.key.clone(), value);
                }
            } else if let Some(warnings) = trinity::warnings(entry, &path.shown, &path.pattern) {
                self.warnings.extend(warnings);
            } else {
                self.problems.push(unknown(entry, keys, &path));
            }
        }
        section.into()
    }

    fn value_of_key(&mut self, entry: &NodeEntry, key: &SchemaKey, path: &Path) -> Value {
        let Tree::Scalar(scalar) = &entry.node.tree else {
            return self.value(&entry.node, &key.shape, path);
        };
        let empty = scalar.is_null() || scalar.is_none();
        if key.nullable && empty {
            return Value::Null;
        }
        if let Some((value, warning)) = trinity::replaced(scalar, entry, &path.shown, &path.pattern)
        {
            self.warnings.extend(warning);
            return value.into();
        }
        let is_single = !matches!(
            key.shape,
            KeySchema::Section { .. } | KeySchema::Map(_) | KeySchema::List { .. } | KeySchema::Any
        );
        if scalar.is_null() && is_single {
            let message = format!("no value given; expected {}", key.shape.expected());
            let hint =
                format!("give one, or remove the key to have {}", display_text(&key.default));
            let problem =
                ConfigProblem::new(&path.shown, message).at(entry.span.as_ref()).hint(hint);
            self.problems.push(problem);
            return Value::Null;
        }
        self.value(&entry.node, &key.shape, path)
    }

    fn record_origin(&mut self, entry: &NodeEntry, path: &Path, value: &Value) {
        let is_leaf = !value.is_object() && !value.is_array();
        let value = is_leaf.then(|| value.clone());
        // Messages about a value point at the value, those about a section at its name.
        let span = if is_leaf { &entry.node.span } else { &entry.span };
        let span = span.clone().or_else(|| entry.span.clone());
        self.origins.insert(path.shown.clone(), Origin { span, value });
    }

    fn scalar(
        &mut self,
        scalar: &Scalar,
        node: &ConfigNode,
        shape: &KeySchema,
        path: &Path,
    ) -> Value {
        let value = match shape {
            KeySchema::Any => Some(scalar.any()),
            KeySchema::Text => Some(scalar.text.as_str().into()),
            KeySchema::Flag => scalar.flag().map(Value::from),
            KeySchema::Choice(choices) => return self.choice(scalar, node, choices, path),
            KeySchema::Integer(bounds) => scalar.integer().and_then(|number| {
                self.bounded(number as f64, bounds, node, path);
                u64::try_from(number).map_or_else(
                    |_| i64::try_from(number).ok().map(Value::from),
                    |number| Some(Value::from(number)),
                )
            }),
            KeySchema::Number(bounds) => scalar.number().map(|number| {
                self.bounded(number, bounds, node, path);
                scalar.any()
            }),
            KeySchema::Section { .. } | KeySchema::Map(_) | KeySchema::List { .. } => None,
        };
        value.unwrap_or_else(|| self.mismatch(node, shape, path))
    }

    fn choice(
        &mut self,
        scalar: &Scalar,
        node: &ConfigNode,
        choices: &[ValueChoice],
        path: &Path,
    ) -> Value {
        let same = |choice: &&ValueChoice| choice.name.eq_ignore_ascii_case(&scalar.text);
        if let Some(choice) = choices.iter().find(same) {
            return choice.name.as_str().into();
        }
        let names = || choices.iter().map(|choice| choice.name.as_str());
        let all: Vec<&str> = names().collect();
        let all = all.join(", ");
        let refused = trinity::value_hint(&path.pattern, &scalar.text);
        let hint = match (refused, nearest(&scalar.text, names())) {
            (Some(hint), _) => hint.to_owned(),
            (None, Some(name)) => format!("did you mean `{name}`? The choices are {all}"),
            (None, None) => format!("the choices are {all}"),
        };
        let message = format!("{} is not a choice", scalar.display_text());
        self.refuse(ConfigProblem::new(&path.shown, message).hint(hint), node)
    }

    fn bounded(&mut self, number: f64, bounds: &Bounds, node: &ConfigNode, path: &Path) {
        if bounds.allow(number) {
            return;
        }
        let is_large = bounds.max.or(bounds.below).is_some_and(|high| number >= high);
        let (side, allowed) = if is_large {
            ("too large", bounds.described_all())
        } else {
            ("too small", bounds.described())
        };
        let message = format!("{} is {side}", node.display_text());
        let unit = if bounds.seconds { "number of seconds" } else { "number" };
        let hint = format!("give a {unit}, {allowed}");
        self.refuse(ConfigProblem::new(&path.shown, message).hint(hint), node);
    }

    fn mismatch(&mut self, node: &ConfigNode, shape: &KeySchema, path: &Path) -> Value {
        let message = format!("expected {}, got {}", shape.expected(), node.display_text());
        let mut problem = ConfigProblem::new(&path.shown, message);
        problem.hint = remedy(node, shape, &path.shown);
        self.refuse(problem, node)
    }

    fn refuse(&mut self, problem: ConfigProblem, node: &ConfigNode) -> Value {
        self.problems.push(problem.at(node.span.as_ref()).value(node.display_text()));
        Value::Null
    }
}

/// Returns the hint for a value of the wrong type, if the intention can be guessed.
fn remedy(node: &ConfigNode, shape: &KeySchema, path: &str) -> Option<String> {
    let Tree::Scalar(scalar) = &node.tree else {
        return match (shape, &node.tree) {
            (KeySchema::List { .. }, _) => Some("begin each item with `- `".to_owned()),
            (KeySchema::Section { .. } | KeySchema::Map(_), Tree::List(_)) => {
                Some("remove the `- ` before the keys".to_owned())
            }
            (KeySchema::Section { .. } | KeySchema::Map(_), _) => None,
            _ => Some("write a single value, without keys or `- `".to_owned()),
        };
    };
    let unquoted = Scalar { text: scalar.text.clone(), plain: true };
    match shape {
        KeySchema::Number(bounds) if bounds.seconds => match seconds(&scalar.text) {
            Some(seconds) => Some(format!("durations are numbers of seconds: write {seconds}")),
            None if unquoted.number().is_some() => Some("remove the quotes".to_owned()),
            None => Some("write a number, such as 30 or 0.5".to_owned()),
        },
        KeySchema::Number(_) | KeySchema::Integer(_) => {
            let hint = if scalar.number().is_some() {
                "write it without a fraction"
            } else if unquoted.number().is_some() {
                "remove the quotes"
            } else {
                "write a number in digits"
            };
            Some(hint.to_owned())
        }
        KeySchema::Flag if unquoted.flag().is_some() => Some("remove the quotes".to_owned()),
        KeySchema::Flag => Some("write true or false".to_owned()),
        KeySchema::List { .. } => {
            Some(format!("write `[{}]`, or one item to a line after `- `", scalar.text))
        }
        KeySchema::Section { keys, .. } => {
            let some: Vec<&str> = keys.keys().map(String::as_str).take(3).collect();
            let some = some.join(", ");
            Some(format!("write the keys of `{path}` on the lines below, indented: {some} …"))
        }
        KeySchema::Map(_) => Some("write `name: value` on the lines below, indented".to_owned()),
        KeySchema::Choice(_) | KeySchema::Text | KeySchema::Any => None,
    }
}

/// Parses a duration like `30m` or `1.5 h` into seconds.
fn seconds(text: &str) -> Option<f64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = text[..split].trim().parse().ok()?;
    let unit = match text[split..].trim() {
        "ms" => 0.001,
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86400.0,
        _ => return None,
    };
    Some(number * unit)
}

fn unknown(entry: &NodeEntry, keys: &BTreeMap<String, SchemaKey>, path: &Path) -> ConfigProblem {
    let word = entry.key.as_str();
    let section = path.shown.strip_suffix(word).unwrap_or_default().trim_end_matches('.');
    let problem = ConfigProblem::new(&path.shown, "unknown key").at(entry.span.as_ref());
    if let Some(hint) = trinity::hint(&path.pattern) {
        return problem.without_line().hint(hint);
    }
    if let Some(name) = trinity::renamed(&path.pattern) {
        return ConfigProblem { message: format!("the key is called `{name}`"), ..problem }
            .hint(format!("write `{name}` instead of `{word}`"));
    }
    let here = nearest(word, keys.keys().map(String::as_str));
    let elsewhere: Vec<&str> = PATHS
        .iter()
        .map(String::as_str)
        .filter(|path| path.rsplit('.').next() == Some(word))
        .take(3)
        .collect();
    let hint = match (here, elsewhere.as_slice()) {
        (Some(here), []) => format!("did you mean `{here}`?"),
        (Some(here), paths) if is_misspelled(word, here) => {
            format!("did you mean `{here}`? `{word}` {}", section_hint(paths))
        }
        (Some(here), paths) => format!("it {}; or did you mean `{here}`?", section_hint(paths)),
        (None, []) => suggest_anywhere(word, section, keys),
        (None, paths) => format!("it {}", section_hint(paths)),
    };
    problem.hint(hint)
}

/// Describes the section of a key that is in the wrong place.
fn section_hint(paths: &[&str]) -> String {
    match paths {
        [path] => match path.rsplit_once('.') {
            Some((section, _)) => format!("belongs under `{section}`, as `{path}`"),
            None => "belongs to the top level, without indentation".to_owned(),
        },
        paths => format!("belongs elsewhere: `{}`", paths.join("` or `")),
    }
}

/// Returns the hint for a key that no section has.
fn suggest_anywhere(word: &str, section: &str, keys: &BTreeMap<String, SchemaKey>) -> String {
    let last = |path: &'static String| path.rsplit('.').next().unwrap_or_default();
    let near = nearest(word, PATHS.iter().map(last));
    let near = near.and_then(|name| PATHS.iter().find(|path| last(path) == name));
    if let Some(path) = near {
        return format!("did you mean `{path}`?");
    }
    let names: Vec<&str> = keys.keys().map(String::as_str).collect();
    let section = if section.is_empty() {
        "at the top level are".to_owned()
    } else {
        format!("of `{section}` are")
    };
    format!("the keys {section} {}", names.join(", "))
}

/// Formats a value as in a configuration file.
pub(super) fn display_text(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
