//! Errors and warnings of a configuration, with source spans and hints.

use std::fmt;
use std::sync::Arc;

/// All problems of an invalid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    problems: Vec<ConfigProblem>,
}

impl ConfigError {
    /// Sorts the problems by source span and keeps the first one of each key.
    pub fn new(found: Vec<ConfigProblem>) -> Self {
        assert!(!found.is_empty(), "an error has at least one problem");
        let mut problems: Vec<ConfigProblem> = Vec::new();
        for problem in found {
            let is_same = |one: &ConfigProblem| !one.key.is_empty() && one.key == problem.key;
            if !problems.iter().any(is_same) {
                problems.push(problem);
            }
        }
        problems.sort_by_key(|problem| SourceSpan::order(problem.span.as_ref()));
        Self { problems }
    }

    /// Returns the problems, at least one.
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
            let separator = if index == 0 { "" } else { "\n\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConfigProblem {
    /// Key, such as `explorer.max_timeout`. Empty: the whole file.
    pub key: String,
    pub value: Option<String>,
    /// `None`: not from a file.
    pub span: Option<SourceSpan>,
    pub message: String,
    pub hint: Option<String>,
}

impl ConfigProblem {
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, span: None, message: message.into(), hint: None }
    }

    pub fn at(mut self, span: Option<&SourceSpan>) -> Self {
        self.span = span.cloned();
        self
    }

    /// Hides the source line, which may hold a secret.
    pub fn without_line(mut self) -> Self {
        if let Some(span) = &mut self.span {
            span.width = 0;
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
        block(f, self.span.as_ref(), &self.key, &self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// A key that is ignored, corrected or risky.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigWarning {
    pub key: String,
    /// `None`: not from a file.
    pub span: Option<SourceSpan>,
    pub message: String,
    /// Consequence, or what to do.
    pub note: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        block(f, self.span.as_ref(), &self.key, &self.message)?;
        write!(f, "\nnote: {}", self.note)
    }
}

/// Location of a key or value in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSpan {
    pub source: Arc<SourceFile>,
    /// Counted from 1.
    pub line: u32,
    /// In characters, counted from 1.
    pub column: u32,
    /// Number of characters. 0: the line is not shown.
    pub width: u32,
}

impl SourceSpan {
    /// Returns the sort key; problems without a span come last.
    pub fn order(span: Option<&Self>) -> (u32, u32) {
        span.map_or((u32::MAX, 0), |span| (span.line, span.column))
    }

    pub fn file(&self) -> &str {
        &self.source.name
    }

    pub fn text(&self) -> &str {
        self.source.text.lines().nth(self.line.saturating_sub(1) as usize).unwrap_or_default()
    }
}

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
    span: Option<&SourceSpan>,
    key: &str,
    message: &str,
) -> fmt::Result {
    if let Some(span) = span {
        write!(f, "{}:{}:{}: ", span.file(), span.line, span.column)?;
    }
    let colon = if key.is_empty() { "" } else { ": " };
    write!(f, "{key}{colon}{message}")?;
    span.map_or(Ok(()), |span| excerpt(f, span))
}

/// Writes the line with the span underlined.
fn excerpt(f: &mut fmt::Formatter<'_>, span: &SourceSpan) -> fmt::Result {
    const MAX_SHOWN_CHARS: usize = 120;
    let text = span.text();
    let before = span.column.saturating_sub(1) as usize;
    let width = text.chars().count();
    if span.width == 0 || text.trim().is_empty() || width > MAX_SHOWN_CHARS || before > width {
        return Ok(());
    }
    let number = span.line.to_string();
    let indent = " ".repeat(number.len());
    // The underline repeats tabs, so that it is aligned with the line.
    let pad: String = text.chars().take(before).map(|c| if c == '\t' { c } else { ' ' }).collect();
    let carets = "^".repeat((span.width as usize).clamp(1, (width - before).max(1)));
    write!(f, "\n  {number} | {text}\n  {indent} | {pad}{carets}")
}
