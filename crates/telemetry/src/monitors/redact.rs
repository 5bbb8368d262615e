//! The configuration as a text for everybody: without what only some may know.

use rollway_config::Config;
use serde_json::Value;

/// What is shown of a configuration at most.
const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// What stands where something was hidden.
const HIDDEN: &str = "(hidden)";

/// Returns a configuration as Markdown.
pub(super) fn describe(config: &Config) -> String {
    let mut text = format!("{:#}", masked(config));
    if text.len() > MAX_SHOWN_BYTES {
        text.truncate(text.floor_char_boundary(MAX_SHOWN_BYTES));
        text.push_str("\n(and more)");
    }
    // Markdown shows indented lines as they are.
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// Returns a configuration without what only some may know.
pub(super) fn masked(config: &Config) -> Value {
    let mut config = serde_json::to_value(config).unwrap_or_default();
    hide(&mut config);
    config
}

/// Replaces values that may be secret: those of variables, those whose name says so, and the
/// passwords in addresses.
fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if is_secret(name) && !value.is_null() {
                    *value = mask(value);
                } else {
                    hide(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::String(text) => {
            if let Some((scheme, rest)) = text.split_once("://")
                && let Some((login, place)) = rest.split_once('@')
                && !login.contains('/')
            {
                *text = format!("{scheme}://{HIDDEN}@{place}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = ["password", "secret", "credential", "api_key", "apikey", "access_token"];
    // The name of a variable is no secret, its value is.
    name == "env_vars" || (!name.ends_with("_env") && words.iter().any(|word| name.contains(word)))
}

/// Keeps the names of what is hidden.
fn mask(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.keys().map(|name| (name.clone(), HIDDEN)).collect(),
        _ => HIDDEN.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_and_nothing_else() {
        let mut config = json!({
            "env_vars": { "TOKEN": "abc" },
            "api_key_env": "OPENAI_API_KEY",
            "arguments": [{ "api_key": "abc", "password": null }],
            "path": "postgresql://me:abc@host/db",
            "url": "http://host/a@b",
            "max_tokens": 7,
        });
        hide(&mut config);
        let expected = json!({
            "env_vars": { "TOKEN": HIDDEN },
            "api_key_env": "OPENAI_API_KEY",
            "arguments": [{ "api_key": HIDDEN, "password": null }],
            "path": "postgresql://(hidden)@host/db",
            "url": "http://host/a@b",
            "max_tokens": 7,
        });
        assert_eq!(config, expected);
    }
}
