//! The configuration without secrets.

use rollway_config::Config;
use serde_json::Value;

const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// Replacement of a secret.
const HIDDEN: &str = "(hidden)";

/// Returns a configuration as Markdown, without secrets.
pub(super) fn describe(config: &Config) -> String {
    let mut text = format!("{:#}", masked(config));
    if text.len() > MAX_SHOWN_BYTES {
        text.truncate(text.floor_char_boundary(MAX_SHOWN_BYTES));
        text.push_str("\n(truncated)");
    }
    // Indented lines are code in Markdown.
    text.lines().map(|line| format!("    {line}\n")).collect()
}

pub(super) fn masked(config: &Config) -> Value {
    let mut config = serde_json::to_value(config).unwrap_or_default();
    hide(&mut config);
    config
}

/// Replaces values of environment variables, values with a secret's name, and passwords in URLs.
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
                && let Some((login, host)) = rest.split_once('@')
                && !login.contains('/')
            {
                *text = format!("{scheme}://{HIDDEN}@{host}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = ["password", "secret", "credential", "api_key", "apikey", "access_token"];
    // `*_env` is the name of a variable, not its value.
    name == "env_vars" || (!name.ends_with("_env") && words.iter().any(|word| name.contains(word)))
}

/// Hides a value and keeps the names of its fields.
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
    fn only_secrets_are_hidden() {
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
