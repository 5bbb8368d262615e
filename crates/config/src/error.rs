//! What is said about a configuration that is wrong, and about one that is only unusual.

use std::fmt;
use std::sync::Arc;

/// A configuration that cannot be used, with everything that is wrong with it.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    problems: Vec<ConfigProblem>,
}

impl ConfigError {
    /// Returns the error for these problems, in the order in which they stand in the file. What is
    /// found later about a key that is wrong already is left out.
    pub fn new(found: Vec<ConfigProblem>) -> Self {
        assert!(!found.is_empty(), "an error has a reason");
        let mut problems: Vec<ConfigProblem> = Vec::new();
        for problem in found {
            let is_same = |one: &ConfigProblem| !one.key.is_empty() && one.key == problem.key;
            if !problems.iter().any(is_same) {
                problems.push(problem);
            }
        }
        problems.sort_by_key(|problem| SourceSpan::order(problem.place.as_ref()));
        Self { problems }
    }

    /// Returns what is wrong; there is at least one problem.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }
}

impl From<ConfigProblem> for ConfigError {
    fn from(problem: ConfigProblem) -> Self {
        Self::new(vec![problem])
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let gap = if index == 0 { "" } else { "\n\n" };
            write!(f, "{gap}{problem}")?;
        }
        Ok(())
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigProblem {
    /// The key, such as `explorer.max_timeout`. Empty where the file as a whole is meant.
    pub key: String,
    /// The value, as far as there is one that can be shown.
    pub value: Option<String>,
    /// Where it stands. None where it does not come from a file.
    pub place: Option<SourceSpan>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

impl ConfigProblem {
    pub fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, place: None, what: what.into(), hint: None }
    }

    pub fn at(mut self, place: Option<&SourceSpan>) -> Self {
        self.place = place.cloned();
        self
    }

    /// Keeps the line to itself, because it may hold a secret.
    pub fn without_line(mut self) -> Self {
        if let Some(place) = &mut self.place {
            place.width = 0;
        }
        self
    }

    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        block(f, self.place.as_ref(), &self.key, &self.what)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Something that is not wrong and may still surprise.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigWarning {
    /// The key, such as `synchronizer.sync_method`.
    pub key: String,
    /// Where it stands. None where it does not come from a file.
    pub place: Option<SourceSpan>,
    /// What is unusual.
    pub what: String,
    /// What happens instead.
    pub note: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        block(f, self.place.as_ref(), &self.key, &self.what)?;
        write!(f, "\nnote: {}", self.note)
    }
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSpan {
    pub source: Arc<SourceFile>,
    pub line: u32,
    pub column: u32,
    /// How many characters are meant. 0: the line is not to be shown.
    pub width: u32,
}

impl SourceSpan {
    /// Returns what to sort by: first things first, and last what has no place.
    pub fn order(place: Option<&Self>) -> (u32, u32) {
        place.map_or((u32::MAX, 0), |place| (place.line, place.column))
    }

    /// Returns the name of the file.
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// Returns the line, counted from 1.
    pub const fn line(&self) -> u32 {
        self.line
    }

    /// Returns the column in characters, counted from 1.
    pub const fn column(&self) -> u32 {
        self.column
    }

    /// Returns the text of the line.
    pub fn text(&self) -> &str {
        self.source.text.lines().nth(self.line.saturating_sub(1) as usize).unwrap_or_default()
    }
}

/// A file as it was read.
#[derive(PartialEq, Eq)]
pub struct SourceFile {
    pub name: String,
    pub text: String,
}

impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn block(
    f: &mut fmt::Formatter<'_>,
    place: Option<&SourceSpan>,
    key: &str,
    what: &str,
) -> fmt::Result {
    if let Some(place) = place {
        write!(f, "{}:{}:{}: ", place.file(), place.line, place.column)?;
    }
    let colon = if key.is_empty() { "" } else { ": " };
    write!(f, "{key}{colon}{what}")?;
    place.map_or(Ok(()), |place| excerpt(f, place))
}

/// Shows the line, with the place underlined.
fn excerpt(f: &mut fmt::Formatter<'_>, place: &SourceSpan) -> fmt::Result {
    const MAX_SHOWN_CHARS: usize = 120;
    let text = place.text();
    let before = place.column.saturating_sub(1) as usize;
    let width = text.chars().count();
    if place.width == 0 || text.trim().is_empty() || width > MAX_SHOWN_CHARS || before > width {
        return Ok(());
    }
    let number = place.line.to_string();
    let margin = " ".repeat(number.len());
    // Tabs are shown as they are, so that the underline has to have them too.
    let pad: String = text.chars().take(before).map(|c| if c == '\t' { c } else { ' ' }).collect();
    let carets = "^".repeat((place.width as usize).clamp(1, (width - before).max(1)));
    write!(f, "\n  {number} | {text}\n  {margin} | {pad}{carets}")
}
