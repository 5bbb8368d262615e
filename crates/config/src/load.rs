//! The ways into a [`Config`]: a file, a text, a dictionary, and single keys on top.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Config;
use super::error::{ConfigError, ConfigProblem, ConfigWarning};
use super::key_schema::{KeySchema, SHAPE};
use super::node::ConfigNode;
use super::read::{ConfigReader, Origins};
use super::yaml;

/// Maximum size of a configuration file.
const MAX_BYTES: u64 = 4 << 20;

/// Origin of a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Loaded {
    /// Folder of the file. `None`: not read from a file.
    pub(super) folder: Option<PathBuf>,
    pub(super) warnings: Vec<ConfigWarning>,
    pub(super) origins: Origins,
}

/// Configurations of different origin are equal if their keys are.
impl PartialEq for Loaded {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Config {
    /// Reads a YAML file. A job without a name gets that of its file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let mut config = Self::from_yaml(&read_file(path, &name)?, &name)?;
        config.loaded.folder = path.parent().map(Path::to_owned);
        // Two files of one folder are two jobs.
        if let Some(stem) = path.file_stem().filter(|_| !config.loaded.origins.contains_key("name"))
        {
            config.name = stem.to_string_lossy().into_owned();
        }
        Ok(config)
    }

    /// Sets the folder that relative paths of a configuration file refer to.
    #[must_use]
    pub fn in_folder(mut self, folder: Option<PathBuf>) -> Self {
        self.loaded.folder = folder.or(self.loaded.folder);
        self
    }

    /// Reads YAML. Messages name the source `name` before the line.
    pub fn from_yaml(text: &str, name: &str) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let node = yaml::parse(name, text, &mut problems);
        Self::from_node(node, problems)
    }

    /// Reads a dictionary, such as one from Python.
    pub fn from_value(value: &Value) -> Result<Self, ConfigError> {
        Self::from_node(Some(ConfigNode::from(value)), Vec::new())
    }

    /// Returns all keys with their values.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a configuration is plain data")
    }

    /// Returns the configuration changed by `key=value`. Values are YAML; a mapping adds keys,
    /// everything else replaces the value.
    pub fn with_overrides<T: AsRef<str>>(
        &self,
        overrides: impl IntoIterator<Item = T>,
    ) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let mut all = ConfigNode::map(Vec::new());
        for text in overrides {
            if let Some(node) = parse_override(text.as_ref(), &mut problems) {
                all.merge(node);
            }
        }
        let mut reader = ConfigReader { problems, ..ConfigReader::default() };
        let changes = reader.root(&all);
        if !reader.problems.is_empty() {
            return Err(ConfigError::new(reader.problems));
        }
        let mut value = self.to_value();
        apply(&mut value, changes, &SHAPE);
        let mut loaded = self.loaded.clone();
        loaded.warnings.extend(reader.warnings);
        // Source spans of the items of a replaced list are stale.
        let is_replaced =
            |old: &str| reader.origins.keys().any(|new| old.starts_with(&format!("{new}[")));
        loaded.origins.retain(|old, _| !is_replaced(old));
        loaded
            .origins
            .extend(reader.origins.into_iter().filter(|(_, origin)| origin.value.is_some()));
        Ok(Self { loaded, ..typed(value)? })
    }

    fn from_node(
        node: Option<ConfigNode>,
        problems: Vec<ConfigProblem>,
    ) -> Result<Self, ConfigError> {
        let mut reader = ConfigReader { problems, ..ConfigReader::default() };
        let value = node.map_or(Value::Null, |node| reader.root(&node));
        if !reader.problems.is_empty() {
            return Err(ConfigError::new(reader.problems));
        }
        let ConfigReader { warnings, origins, .. } = reader;
        Ok(Self { loaded: Loaded { folder: None, warnings, origins }, ..typed(value)? })
    }
}

pub(super) fn read_file(path: &Path, name: &str) -> Result<String, ConfigError> {
    let failed = |error: std::io::Error| {
        let message = match error.kind() {
            std::io::ErrorKind::NotFound => "file not found".to_owned(),
            std::io::ErrorKind::IsADirectory => "this is a folder".to_owned(),
            _ => error.to_string(),
        };
        let hint = "give the path of a YAML file, relative to the current folder";
        ConfigProblem::new(name, message).hint(hint)
    };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > MAX_BYTES {
        let message = format!("{length} bytes, more than the limit of {MAX_BYTES} bytes");
        let hint = "give the path of a configuration file";
        return Err(ConfigProblem::new(name, message).hint(hint).into());
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().iter().take(error.utf8_error().valid_up_to());
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        let problem = ConfigProblem::new(name, format!("line {line} is not UTF-8 text"));
        problem.hint("save the file with the encoding UTF-8").into()
    })
}

fn parse_override(text: &str, problems: &mut Vec<ConfigProblem>) -> Option<ConfigNode> {
    let mut refuse = |message: &str| {
        let hint = "write it like `explorer.max_timeout=60`";
        problems.push(ConfigProblem::new("", format!("`{text}` {message}")).hint(hint));
        None
    };
    let Some((key, value)) = text.split_once('=') else { return refuse("is not `key=value`") };
    let key = key.trim();
    if key.split('.').any(str::is_empty) {
        return refuse("does not begin with a key");
    }
    let before = problems.len();
    let mut node = yaml::parse(text, value, problems);
    for problem in &mut problems[before..] {
        problem.key = key.to_owned();
        problem.span = None;
    }
    if value.trim().is_empty() {
        node = Some(ConfigNode::scalar("", true));
    }
    node.map(|mut node| {
        node.clear_spans();
        ConfigNode::nest(key, node)
    })
}

/// Applies changes to a configuration with all keys.
fn apply(value: &mut Value, changes: Value, shape: &KeySchema) {
    match (shape, changes) {
        (KeySchema::Section { keys, .. }, Value::Object(changes)) => {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            for (name, change) in changes {
                let any = KeySchema::Any;
                let shape = keys.get(&name).map_or(&any, |key| &key.shape);
                apply(&mut value[name.as_str()], change, shape);
            }
        }
        (KeySchema::Map(_), Value::Object(changes)) if value.is_object() && !changes.is_empty() => {
            for (name, change) in changes {
                value[name.as_str()] = change;
            }
        }
        (_, change) => *value = change,
    }
}

/// Deserializes a configuration. The reader has checked every value, so that an error is rare.
fn typed(value: Value) -> Result<Config, ConfigError> {
    serde_json::from_value(value).map_err(|error| ConfigProblem::new("", error.to_string()).into())
}
