//! From [`ConfigNode`]s to the values of known keys. The reader goes over everything that was
//! written, so that all problems are found at once, and remembers where each key stands.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::{ConfigProblem, ConfigWarning, SourceSpan};
use super::key_schema::{Bounds, KeySchema, PATHS, SHAPE, SchemaKey, ValueChoice, join};
use super::node::{ConfigNode, NodeEntry, Scalar, Tree};
use super::trinity;
use rollway_base::suggest::{is_misspelled, nearest};

/// What was read.
#[derive(Default)]
pub(super) struct ConfigReader {
    pub(super) problems: Vec<ConfigProblem>,
    pub(super) warnings: Vec<ConfigWarning>,
    pub(super) origins: Origins,
}

/// The keys that were written, with where they stand and what they say.
pub(super) type Origins = BTreeMap<String, Origin>;

/// Where a key stands, and what it said when it was read; none for sections and lists.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) place: Option<SourceSpan>,
    pub(super) value: Option<Value>,
}

/// The way to a value: for people, and without the numbers of list items for lookups.
#[derive(Clone, Default)]
struct Path {
    shown: String,
    pattern: String,
}

impl Path {
    fn agent_key(&self, key: &str) -> Self {
        Self { shown: join(&self.shown, key), pattern: join(&self.pattern, key) }
    }

    fn item(&self, index: usize) -> Self {
        Self { shown: format!("{}[{index}]", self.shown), pattern: self.pattern.clone() }
    }
}

impl ConfigReader {
    /// Reads a whole configuration. Where there are problems the value is incomplete.
    pub(super) fn root(&mut self, node: &ConfigNode) -> Value {
        let path = Path::default();
        match &node.tree {
            Tree::Scalar(scalar) if scalar.is_null() => Value::Object(Map::new()),
            Tree::Map(_) => self.value(node, &SHAPE, &path),
            Tree::Scalar(_) | Tree::List(_) => {
                let what = format!("expected keys and values, got {}", node.shown());
                let hint = "a configuration begins with lines like `mode: explore`";
                self.problems.push(ConfigProblem::new("", what).at(node.place.as_ref()).hint(hint));
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
                let entry = NodeEntry { key: key.clone(), place: None, node: node.clone() };
                self.value(&ConfigNode::map(vec![entry]), shape, path)
            }
            (KeySchema::Map(inner), Tree::Map(entries)) => entries
                .iter()
                .map(|entry| {
                    let value = self.value(&entry.node, inner, &path.agent_key(&entry.key));
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
        let origin = Origin { place: node.place.clone(), value: None };
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
            let path = path.agent_key(&entry.key);
            if let Some(key) = keys.get(&entry.key) {
                let before = self.problems.len();
                let value = self.keyed(entry, key, &path);
                if self.problems.len() == before {
                    self.remember(entry, &path, &value);
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

    fn keyed(&mut self, entry: &NodeEntry, key: &SchemaKey, path: &Path) -> Value {
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
            let what = format!("no value given; expected {}", key.shape.expected());
            let hint = format!("give one, or remove the key to have {}", shown(&key.default));
            let problem = ConfigProblem::new(&path.shown, what).at(entry.place.as_ref()).hint(hint);
            self.problems.push(problem);
            return Value::Null;
        }
        self.value(&entry.node, &key.shape, path)
    }

    fn remember(&mut self, entry: &NodeEntry, path: &Path, value: &Value) {
        let is_leaf = !value.is_object() && !value.is_array();
        let value = is_leaf.then(|| value.clone());
        // Problems with a value point at the value, those with a section at its name.
        let place = if is_leaf { &entry.node.place } else { &entry.place };
        let place = place.clone().or_else(|| entry.place.clone());
        self.origins.insert(path.shown.clone(), Origin { place, value });
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
        let what = format!("{} is not a choice", scalar.shown());
        self.refuse(ConfigProblem::new(&path.shown, what).hint(hint), node)
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
        let what = format!("{} is {side}", node.shown());
        let unit = if bounds.seconds { "number of seconds" } else { "number" };
        let hint = format!("give a {unit}, {allowed}");
        self.refuse(ConfigProblem::new(&path.shown, what).hint(hint), node);
    }

    fn mismatch(&mut self, node: &ConfigNode, shape: &KeySchema, path: &Path) -> Value {
        let what = format!("expected {}, got {}", shape.expected(), node.shown());
        let mut problem = ConfigProblem::new(&path.shown, what);
        problem.hint = remedy(node, shape, &path.shown);
        self.refuse(problem, node)
    }

    fn refuse(&mut self, problem: ConfigProblem, node: &ConfigNode) -> Value {
        self.problems.push(problem.at(node.place.as_ref()).value(node.shown()));
        Value::Null
    }
}

/// Returns what to write instead of a value of the wrong kind, where that can be guessed.
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
                "write the number in digits"
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

/// Returns how many seconds something like `30m` or `1.5 h` is.
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
    let what = "there is no such key".to_owned();
    let problem = ConfigProblem::new(&path.shown, what).at(entry.place.as_ref());
    if let Some(hint) = trinity::hint(&path.pattern) {
        return problem.without_line().hint(hint);
    }
    if let Some(name) = trinity::renamed(&path.pattern) {
        return ConfigProblem { what: format!("the key is called `{name}`"), ..problem }
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
            format!("did you mean `{here}`? `{word}` {}", belongs(paths))
        }
        (Some(here), paths) => format!("it {}; or did you mean `{here}`?", belongs(paths)),
        (None, []) => far(word, section, keys),
        (None, paths) => format!("it {}", belongs(paths)),
    };
    problem.hint(hint)
}

/// Says where a key belongs that stands in the wrong place.
fn belongs(paths: &[&str]) -> String {
    match paths {
        [path] => match path.rsplit_once('.') {
            Some((section, _)) => format!("belongs under `{section}`, as `{path}`"),
            None => "belongs to the top, without indentation".to_owned(),
        },
        paths => format!("belongs elsewhere: `{}`", paths.join("` or `")),
    }
}

/// Returns the hint for a key that is neither here nor, in this spelling, anywhere else.
fn far(word: &str, section: &str, keys: &BTreeMap<String, SchemaKey>) -> String {
    let last = |path: &'static String| path.rsplit('.').next().unwrap_or_default();
    let near = nearest(word, PATHS.iter().map(last));
    let near = near.and_then(|name| PATHS.iter().find(|path| last(path) == name));
    if let Some(path) = near {
        return format!("did you mean `{path}`?");
    }
    let names: Vec<&str> = keys.keys().map(String::as_str).collect();
    let place = if section.is_empty() {
        "at the top are".to_owned()
    } else {
        format!("of `{section}` are")
    };
    format!("the keys {place} {}", names.join(", "))
}

/// Returns a value as it would be written.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
