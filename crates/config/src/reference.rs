//! The JSON Schema for editors and the reference page of all keys, both derived from the types.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::key_schema::{Bounds, KeySchema, SCHEMA, SHAPE, SchemaKey, join};
use super::read::display_text;
use super::trinity::{SPELLINGS, UNUSED};

/// Returns the JSON Schema of the configuration.
pub fn schema() -> Value {
    let mut schema = SCHEMA.clone();
    spell_out(&mut schema);
    schema
}

/// Returns the reference page of all keys as Markdown.
pub fn reference() -> String {
    let mut page = ReferencePage { text: HEAD.to_owned(), sections: Vec::new() };
    page.group("", &SHAPE);
    page.section("", &SHAPE);
    page.trinity();
    page.text
}

const HEAD: &str = "\
# Configuration

A job is described by a YAML file. Every key has a default; an unknown key is an error with a
suggestion. `rollway check FILE` reports all errors at once, with lines.

- Durations are numbers of seconds.
- `null` means no value. A section without content has its defaults.
- `${oc.env:NAME}` is the environment variable `NAME`; `${oc.env:NAME,value}` has a default for a
  variable that is not set.
- Anchors (`&name`, `*name`) and merge keys (`<<: *name`) are supported.
- On the command line, `key=value` after the file changes a key: `explorer.max_timeout=60`.
- `rollway schema` prints a JSON Schema, with which editors complete and check files.

This page is generated from the types in `crates/config`.
";

struct ReferencePage<'a> {
    text: String,
    /// Sections, each with the paths that have its keys. It is described under the first one.
    sections: Vec<(Vec<String>, &'a KeySchema)>,
}

impl<'a> ReferencePage<'a> {
    /// Collects the sections and their paths in the order of the page.
    fn group(&mut self, path: &str, shape: &'a KeySchema) {
        let KeySchema::Section { keys, .. } = shape else { return };
        if let Some((paths, _)) = self.sections.iter_mut().find(|(_, one)| *one == shape) {
            paths.push(path.to_owned());
            return;
        }
        self.sections.push((vec![path.to_owned()], shape));
        for (path, shape) in subsections(path, keys) {
            self.group(&path, shape);
        }
    }

    /// Returns all paths with the keys of a section.
    fn paths(&self, shape: &KeySchema) -> &[String] {
        self.sections.iter().find(|(_, one)| *one == shape).map_or(&[], |(paths, _)| paths)
    }

    fn section(&mut self, path: &str, shape: &'a KeySchema) {
        let KeySchema::Section { keys, .. } = shape else { return };
        let [first, others @ ..] = self.paths(shape) else { return };
        if first != path {
            return;
        }
        let same: Vec<_> = others.iter().map(|path| format!("`{path}`")).collect();
        let title = if path.is_empty() { "The job".to_owned() } else { format!("`{path}`") };
        let _ = write!(self.text, "\n## {title}\n\n");
        if !same.is_empty() {
            let _ = write!(self.text, "Also the keys of {}.\n\n", same.join(", "));
        }
        self.text.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
        for (name, key) in in_order(keys) {
            self.row(name, key);
        }
        for (path, shape) in subsections(path, keys) {
            self.section(&path, shape);
        }
    }

    /// Returns the link target of the description of a section.
    fn target(&self, shape: &KeySchema) -> String {
        self.paths(shape).first().map(|path| anchor(path)).unwrap_or_default()
    }

    fn row(&mut self, name: &str, key: &SchemaKey) {
        let (kind, default) = match &key.shape {
            shape @ KeySchema::Section { .. } => {
                let default = if key.nullable { "`null`" } else { "" };
                (format!("[section](#{})", self.target(shape)), default.to_owned())
            }
            KeySchema::List { item, .. } if matches!(**item, KeySchema::Section { .. }) => {
                (format!("list of [sections](#{})", self.target(item)), "`[]`".to_owned())
            }
            shape => (kind(shape), format!("`{}`", display_text(&key.default))),
        };
        let mut about = key.about.clone();
        if let KeySchema::Choice(choices) = &key.shape {
            for choice in choices {
                let _ = write!(about, "<br>`{}`: {}", choice.name, choice.about);
            }
        }
        let kind = if key.nullable { format!("{kind}; or null") } else { kind };
        let _ = writeln!(self.text, "| `{name}` | {kind} | {default} | {about} |");
    }

    fn trinity(&mut self) {
        self.text.push_str(
            "\n## Files for Trinity-RFT\n\n\
             These values of Trinity-RFT are translated:\n\n\
             | key | value | becomes | note |\n|---|---|---|---|\n",
        );
        for spelling in SPELLINGS {
            let note = spelling.note.unwrap_or_default();
            let _ = writeln!(
                self.text,
                "| `{}` | `{}` | `{}` | {note} |",
                spelling.key, spelling.from, spelling.to
            );
        }
        self.text.push_str(
            "\nThese keys are accepted with a warning and have no effect:\n\n\
             | section | keys | instead |\n|---|---|---|\n",
        );
        for unused in UNUSED {
            let code = |names: &[&str]| format!("`{}`", names.join("`, `"));
            let sections = match unused.sections {
                [""] => "the job".to_owned(),
                sections => code(sections),
            };
            let keys = code(&unused.keys().collect::<Vec<_>>());
            let _ = writeln!(self.text, "| {sections} | {keys} | {} |", unused.note);
        }
    }
}

/// Returns the keys of a section in the order of its table.
fn in_order(keys: &BTreeMap<String, SchemaKey>) -> Vec<(&String, &SchemaKey)> {
    let mut keys: Vec<_> = keys.iter().collect();
    keys.sort_by_key(|(_, key)| KeyRank::of(key));
    keys
}

/// Returns the keys of a section that may be sections, each with its path.
fn subsections<'a>(
    path: &str,
    keys: &'a BTreeMap<String, SchemaKey>,
) -> Vec<(String, &'a KeySchema)> {
    let below = |(name, key): (&String, &'a SchemaKey)| {
        let path = join(path, name);
        match &key.shape {
            KeySchema::List { item, .. } => (format!("{path}[]"), &**item),
            shape => (path, shape),
        }
    };
    in_order(keys).into_iter().map(below).collect()
}

/// Order of keys in a table: single values first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyRank {
    Value,
    Section,
    List,
}

impl KeyRank {
    fn of(key: &SchemaKey) -> Self {
        match &key.shape {
            KeySchema::Section { .. } => Self::Section,
            KeySchema::List { item, .. } if matches!(**item, KeySchema::Section { .. }) => {
                Self::List
            }
            _ => Self::Value,
        }
    }
}

fn kind(shape: &KeySchema) -> String {
    match shape {
        KeySchema::Section { .. } => "section".to_owned(),
        KeySchema::Map(inner) => format!("map of {}", kind(inner)),
        KeySchema::List { item, .. } => format!("list of {}", kind(item)),
        KeySchema::Choice(_) => "choice".to_owned(),
        KeySchema::Integer(bounds) => number("integer", bounds),
        KeySchema::Number(bounds) if bounds.seconds => number("seconds", bounds),
        KeySchema::Number(bounds) => number("number", bounds),
        KeySchema::Text => "text".to_owned(),
        KeySchema::Flag => "true or false".to_owned(),
        KeySchema::Any => "any values".to_owned(),
    }
}

fn number(word: &str, bounds: &Bounds) -> String {
    let described = bounds.described();
    // Counts and durations are never negative.
    if described.is_empty() || described == "at least 0" {
        word.to_owned()
    } else {
        format!("{word}, {described}")
    }
}

/// Returns the link target of a heading.
fn anchor(path: &str) -> String {
    path.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-')).collect()
}

/// Translates our extensions to JSON Schema: the short form of a section, and a single value in
/// place of a list.
fn spell_out(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(spell_out),
        Value::Object(object) => {
            object.values_mut().for_each(spell_out);
            object.remove("x-unit");
            let short =
                object.remove("x-shorthand").and_then(|key| key.as_str().map(str::to_owned));
            let one = match short {
                Some(key) => object.get("properties").and_then(|keys| keys.get(key)).cloned(),
                None => object.remove("x-one-or-many").and_then(|_| object.get("items").cloned()),
            };
            let Some(one) = one else { return };
            let mut whole = std::mem::take(object);
            for name in ["description", "default"] {
                if let Some(value) = whole.remove(name) {
                    object.insert(name.to_owned(), value);
                }
            }
            object.insert("anyOf".to_owned(), json!([whole, one]));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
