//! Every key of the schema has an effect: other crates, or a conversion that they use, read its
//! field.
//!
//! The test compares names of fields, so that a field of the same name elsewhere hides a key
//! without an effect. `storage_type` of tasksets is such a key: `file` is its only choice.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rollway_config::schema;
use serde_json::Value;

/// Files of the configuration crate that parse, check or describe keys, without an effect.
const NO_EFFECT: &[&str] =
    &["error", "key_schema", "load", "node", "read", "reference", "rules", "trinity", "yaml"];

/// Keys whose only effect is that a rule permits other keys.
const PERMISSIONS: &[&str] = &["allow_unauthenticated_network"];

#[test]
fn every_key_is_read() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates have a folder");
    let mut fields = BTreeSet::new();
    for folder in fs::read_dir(crates).expect("the crates can be listed") {
        let folder = folder.expect("a crate can be listed").path();
        let is_config = folder.ends_with("config");
        for file in sources(&folder.join("src")) {
            let relative = file.strip_prefix(folder.join("src")).expect("it is below");
            let first = relative.iter().next().and_then(|part| Path::new(part).file_stem());
            let name = first.and_then(|name| name.to_str()).unwrap_or_default();
            if is_config && NO_EFFECT.contains(&name) {
                continue;
            }
            let text = fs::read_to_string(&file).expect("a source file is text");
            read_fields(&text, is_config, &mut fields);
        }
    }
    for file in sources(&crates.join("../python/rollway")) {
        let text = fs::read_to_string(&file).expect("a source file is text");
        read_fields(&text, false, &mut fields);
    }
    let mut keys = Vec::new();
    collect("", &schema(), &mut keys);
    assert!(keys.len() > 150, "{} keys", keys.len());
    fields.extend(PERMISSIONS.iter().map(|key| (*key).to_owned()));
    let is_unread = |(_, key): &&(String, String)| !fields.contains(key.as_str());
    let unread: Vec<String> =
        keys.iter().filter(is_unread).map(|(section, key)| format!("{section}.{key}")).collect();
    assert!(
        unread.is_empty(),
        "keys without an effect: {}\nread them, or move them to the table of unused keys in \
         crates/config/src/trinity.rs",
        unread.join(", ")
    );
}

/// Adds the fields that a file reads: `.name` without a call, and names in `let Self { name, .. }`.
fn read_fields(text: &str, is_config: bool, fields: &mut BTreeSet<String>) {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    for part in code.split('.').skip(1) {
        let name = word(part);
        if !name.is_empty() && !part[name.len()..].starts_with('(') {
            fields.insert(name.to_owned());
        }
    }
    if is_config {
        for pattern in code.split("let Self {").skip(1) {
            let names = pattern.split('}').next().unwrap_or_default().split(',');
            let taken = names.map(str::trim).filter(|name| !name.ends_with(": _"));
            fields.extend(taken.map(|name| word(name).to_owned()));
        }
    }
}

/// Returns the identifier at the start of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Collects the keys of a schema, each with the path of its section.
fn collect(section: &str, schema: &Value, keys: &mut Vec<(String, String)>) {
    for (key, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        keys.push((section.to_owned(), key.clone()));
        let path = if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
        collect(&path, inner, keys);
    }
    if let Some(items) = schema.get("items") {
        collect(section, items, keys);
    }
    for one in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        collect(section, one, keys);
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            found.push(path);
        }
    }
    found
}
