//! Migration report: the keys of a Trinity-RFT configuration, each with its meaning in Rollway.

use std::fmt;
use std::path::Path;

use super::Config;
use super::built_in::{BUILT_IN_REWARDS, BUILT_IN_WORKFLOWS};
use super::error::{ConfigError, ConfigProblem, ConfigWarning};
use super::key_schema::join;
use super::load;
use super::node::{ConfigNode, NodeEntry, Tree};
use super::read::ConfigReader;
use super::{trinity, yaml};

/// Keys and names of a configuration, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct MigrationReport {
    pub keys: Vec<MigratedKey>,
    /// Workflows, reward functions and operators that the configuration names.
    pub names: Vec<MigratedName>,
    /// Violations of rules between keys, found once every key is valid.
    pub rules: Vec<ConfigProblem>,
}

/// A key of the file.
#[derive(Clone, Debug)]
pub struct MigratedKey {
    pub key: String,
    pub line: Option<u32>,
    pub outcome: MigrationOutcome,
}

/// Meaning of a key in Rollway.
#[derive(Clone, Debug, PartialEq)]
pub enum MigrationOutcome {
    /// Works as it is.
    Same,
    /// Works; Rollway calls the value differently.
    Respelled { from: String, to: String, note: Option<String> },
    /// Accepted, without effect.
    Unused { note: String },
    /// Must be changed or removed.
    Refused { problem: String, hint: Option<String> },
}

/// A name of code in the file.
#[derive(Clone, Debug)]
pub struct MigratedName {
    pub key: String,
    pub line: Option<u32>,
    pub name: String,
    /// Location of the code, or the remedy.
    pub note: String,
}

impl MigrationReport {
    /// Returns whether the configuration can be run as it is.
    pub fn is_ready(&self) -> bool {
        let is_refused =
            |key: &MigratedKey| matches!(key.outcome, MigrationOutcome::Refused { .. });
        self.rules.is_empty() && !self.keys.iter().any(is_refused)
    }
}

impl Config {
    /// Reports the keys of a YAML file that was written for Trinity-RFT, given the names of the
    /// built-in operators.
    ///
    /// # Errors
    /// If the file cannot be read or is no YAML.
    pub fn migration_report<'a>(
        path: impl AsRef<Path>,
        operators: impl IntoIterator<Item = &'a str>,
    ) -> Result<MigrationReport, ConfigError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let text = load::read_file(path, &name)?;
        let mut problems = Vec::new();
        let node = yaml::parse(&name, &text, &mut problems);
        if !problems.is_empty() {
            return Err(ConfigError::new(problems));
        }
        let Some(node) = node else { return Ok(MigrationReport::default()) };
        let mut reader = ConfigReader::default();
        reader.root(&node);
        let ConfigReader { problems, warnings, .. } = reader;
        let operators = operators.into_iter().collect();
        let report = MigrationReport::default();
        let mut migration = Migration { problems, warnings, operators, report };
        migration.node(&node, "", "");
        let mut report = migration.report;
        if report.is_ready()
            && let Err(error) = Self::load(path).and_then(|config| config.resolve())
        {
            report.rules = error.problems().to_vec();
        }
        Ok(report)
    }
}

/// Walk over the keys of a file.
struct Migration<'a> {
    problems: Vec<ConfigProblem>,
    warnings: Vec<ConfigWarning>,
    operators: Vec<&'a str>,
    report: MigrationReport,
}

impl Migration<'_> {
    fn node(&mut self, node: &ConfigNode, shown: &str, pattern: &str) {
        match &node.tree {
            Tree::Scalar(_) => {}
            Tree::List(nodes) => {
                for (index, node) in nodes.iter().enumerate() {
                    self.node(node, &format!("{shown}[{index}]"), pattern);
                }
            }
            Tree::Map(entries) => {
                for entry in entries {
                    let (key, pattern) = (join(shown, &entry.key), join(pattern, &entry.key));
                    self.entry(entry, &key, &pattern);
                }
            }
        }
    }

    fn entry(&mut self, entry: &NodeEntry, key: &str, pattern: &str) {
        if let Some(problem) = self.problems.iter().find(|problem| problem.key == key) {
            let (problem, hint) = (problem.message.clone(), problem.hint.clone());
            return self.push(key, entry, MigrationOutcome::Refused { problem, hint });
        }
        let Tree::Scalar(scalar) = &entry.node.tree else {
            if let Some(note) = self.note(key) {
                self.push(key, entry, MigrationOutcome::Unused { note });
                return self.notes_below(entry, key);
            }
            return self.node(&entry.node, key, pattern);
        };
        let outcome = match trinity::replaced(scalar, entry, key, pattern) {
            Some((to, warning)) => MigrationOutcome::Respelled {
                from: scalar.text.clone(),
                to: to.to_owned(),
                note: warning.map(|warning| warning.note),
            },
            None => match self.note(key) {
                Some(note) => MigrationOutcome::Unused { note },
                None => MigrationOutcome::Same,
            },
        };
        self.push(key, entry, outcome);
        if let Some(note) = trinity_name(pattern, &scalar.text, &self.operators) {
            let (key, name) = (key.to_owned(), scalar.text.clone());
            self.report.names.push(MigratedName { key, line: line(entry), name, note });
        }
    }

    /// Reports the keys of a section without effect that have a note of their own.
    fn notes_below(&mut self, section: &NodeEntry, shown: &str) {
        let Tree::Map(entries) = &section.node.tree else { return };
        for entry in entries {
            let key = join(shown, &entry.key);
            if let Some(note) = self.note(&key) {
                self.push(&key, entry, MigrationOutcome::Unused { note });
            }
        }
    }

    fn note(&self, key: &str) -> Option<String> {
        let found = self.warnings.iter().find(|warning| warning.key == key);
        found.map(|warning| warning.note.clone())
    }

    fn push(&mut self, key: &str, entry: &NodeEntry, outcome: MigrationOutcome) {
        let key = MigratedKey { key: key.to_owned(), line: line(entry), outcome };
        self.report.keys.push(key);
    }
}

fn line(entry: &NodeEntry) -> Option<u32> {
    entry.span.as_ref().map(|span| span.line)
}

/// Returns where the code of a name is found, if the key names code.
fn trinity_name(pattern: &str, name: &str, operators: &[&str]) -> Option<String> {
    let is_name = ["_workflow_type", "_reward_fn_type"].iter().any(|end| pattern.ends_with(end))
        || pattern == "data_processor.experience_pipeline.operators.name";
    if !is_name {
        return None;
    }
    let built_in = [BUILT_IN_WORKFLOWS, BUILT_IN_REWARDS, operators];
    let note = if built_in.iter().any(|names| names.contains(&name)) {
        "built in".to_owned()
    } else if name.contains(':') {
        "imported by the workers".to_owned()
    } else {
        format!(
            "not built in: set TRINITY_PLUGIN_DIRS to the folder of the module that registers \
             `{name}`, or name the class as `package.module:Class`"
        )
    };
    Some(note)
}

impl fmt::Display for MigrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut same = Vec::new();
        let (mut respelled, mut unused, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for MigratedKey { key, line, outcome } in &self.keys {
            let at = at(*line);
            match outcome {
                MigrationOutcome::Same => same.push(format!("{at}{key}")),
                MigrationOutcome::Respelled { from, to, note } => {
                    let note = note.as_ref().map(|note| format!("; {note}")).unwrap_or_default();
                    respelled.push(format!("{at}{key}: {from} is called {to}{note}"));
                }
                MigrationOutcome::Unused { note } => unused.push(format!("{at}{key}: {note}")),
                MigrationOutcome::Refused { problem, hint } => {
                    let hint = hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
                    refused.push(format!("{at}{key}: {problem}{hint}"));
                }
            }
        }
        let named = |MigratedName { line, key, name, note }: &MigratedName| {
            format!("{}{key}: {name}: {note}", at(*line))
        };
        let rule = |problem: &ConfigProblem| {
            let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
            let line = problem.span.as_ref().map(|span| span.line);
            format!("{}{}: {}{hint}", at(line), problem.key, problem.message)
        };
        let groups = [
            ("keys that work as they are", same),
            ("values that Rollway calls differently, accepted as they are", respelled),
            ("keys without effect", unused),
            ("workflows, reward functions and operators", self.names.iter().map(named).collect()),
            ("keys that must be changed", refused),
            ("rules between keys that are violated", self.rules.iter().map(rule).collect()),
        ];
        for (title, lines) in groups.iter().filter(|(_, lines)| !lines.is_empty()) {
            writeln!(f, "{title} ({})", lines.len())?;
            for line in lines {
                writeln!(f, "  {line}")?;
            }
        }
        Ok(())
    }
}

fn at(line: Option<u32>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}
