//! The configuration without secrets.

use rollway_config::Config;
use serde_json::Value;

use crate::view::ConfigReport;

const MAX_SHOWN_BYTES: usize = 64 * 1024;

/// Minimum length of a secret in an environment variable: a shorter text occurs by chance.
const MIN_SECRET_BYTES: usize = 6;

/// Replacement of a secret.
const HIDDEN: &str = "(hidden)";

/// Returns a configuration as Markdown, without secrets.
pub(crate) fn describe(config: &Config) -> String {
    let mut text = format!("{:#}", masked(config));
    if text.len() > MAX_SHOWN_BYTES {
        text.truncate(text.floor_char_boundary(MAX_SHOWN_BYTES));
        text.push_str("\n(truncated)");
    }
    // Indented lines are code in Markdown.
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// Returns a configuration without secrets, and the keys that differ from their defaults.
pub(crate) fn report(config: &Config) -> ConfigReport {
    let (config, defaults) = (masked(config), masked(&Config::default()));
    if config.to_string().len() > MAX_SHOWN_BYTES {
        return ConfigReport { config: Value::Null, changed: Vec::new() };
    }
    let mut changed = Vec::new();
    differences("", &config, &defaults, &mut changed);
    ConfigReport { config, changed }
}

/// Adds the keys of all values that differ.
fn differences(key: &str, value: &Value, default: &Value, changed: &mut Vec<String>) {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                differences(&below(name), value, &default[name.as_str()], changed);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (at, value) in items.iter().enumerate() {
                let default = default.get(at).unwrap_or(&Value::Null);
                differences(&below(&at.to_string()), value, default, changed);
            }
        }
        // The default of an item of a list is unknown; an empty value was not set.
        Value::Null | Value::Object(_) | Value::Array(_) if default.is_null() => {}
        _ if value != default => changed.push(key.to_owned()),
        _ => {}
    }
}

pub(crate) fn masked(config: &Config) -> Value {
    let mut config = serde_json::to_value(config).unwrap_or_default();
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    redact_value(&mut config, &secret_values(variables));
    config
}

/// Returns the values of environment variables whose name is that of a secret: `${oc.env:NAME}`
/// may have put them anywhere.
fn secret_values(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let is_secret = |name: &str| is_secret(name) || name.to_ascii_lowercase().contains("key");
    let secrets = variables.filter(|(name, value)| {
        value.len() >= MIN_SECRET_BYTES && is_secret(name.trim_end_matches("_ENV"))
    });
    secrets.map(|(_, value)| value).collect()
}

/// Replaces values of environment variables, values with a secret's name, also as arguments of
/// commands, and passwords in URLs.
fn redact_value(value: &mut Value, secrets: &[String]) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if is_secret(name) && !value.is_null() {
                    *value = mask(value);
                } else {
                    redact_value(value, secrets);
                }
            }
        }
        Value::Array(items) => {
            let mut is_argument = false;
            for item in items {
                redact_value(item, secrets);
                let Value::String(text) = item else { continue };
                if std::mem::take(&mut is_argument) {
                    HIDDEN.clone_into(text);
                } else if let Some(option) = text.strip_prefix('-') {
                    match option.split_once('=') {
                        Some((name, _)) if is_secret(name) => *text = format!("-{name}={HIDDEN}"),
                        None => is_argument = is_secret(option),
                        Some(_) => {}
                    }
                }
            }
        }
        Value::String(text) => {
            for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
                if text.contains(secret.as_str()) {
                    *text = text.replace(secret.as_str(), HIDDEN);
                }
            }
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
    let name = name.to_ascii_lowercase().replace('-', "_");
    let words = [
        "password",
        "passwd",
        "secret",
        "credential",
        "api_key",
        "apikey",
        "access_key",
        "authorization",
    ];
    let is_named = || name.ends_with("token") || words.iter().any(|word| name.contains(word));
    // `*_env` is the name of a variable, not its value.
    name == "env_vars" || (!name.ends_with("_env") && is_named())
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
    fn changed_keys_are_those_with_other_values_than_the_defaults() {
        let mut config = Config::default();
        config.buffer.batch_size += 1;
        config.name = "mine".to_owned();
        let report = report(&config);
        assert_eq!(report.changed, ["buffer.batch_size", "name"]);
        assert_eq!(report.config["name"], "mine");
        let (value, default) = (json!([{"a": 1, "b": null, "c": {}}]), json!([]));
        let mut changed = Vec::new();
        differences("list", &value, &default, &mut changed);
        assert_eq!(changed, ["list.0.a"]);
    }

    #[test]
    fn only_secrets_are_hidden() {
        let mut config = json!({
            "env_vars": { "TOKEN": "abc" },
            "api_key_env": "OPENAI_API_KEY",
            "arguments": [{ "api_key": "abc", "password": null, "hf_token": "abc" }],
            "headers": { "Authorization": "Bearer abc" },
            "path": "postgresql://me:abc@host/db",
            "url": "http://host/a@b",
            "max_tokens": 7,
            "monitor_args": { "token": "dapi123" },
            "command": ["train", "--hub-token", "hf_abc", "--key", "x", "--api_key=abc", "-v"],
            "note": "with s3cret-value inside",
        });
        let variables = [("MY_API_KEY", "s3cret-value"), ("HOME", "train")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        redact_value(&mut config, &secret_values(variables.into_iter()));
        let expected = json!({
            "env_vars": { "TOKEN": HIDDEN },
            "api_key_env": "OPENAI_API_KEY",
            "arguments": [{ "api_key": HIDDEN, "password": null, "hf_token": HIDDEN }],
            "headers": { "Authorization": HIDDEN },
            "path": "postgresql://(hidden)@host/db",
            "url": "http://host/a@b",
            "max_tokens": 7,
            "monitor_args": { "token": HIDDEN },
            "command": ["train", "--hub-token", HIDDEN, "--key", "x", "--api_key=(hidden)", "-v"],
            "note": "with (hidden) inside",
        });
        assert_eq!(config, expected);
    }
}
