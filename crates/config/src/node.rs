//! A configuration as written: keys and values with their source spans. The reader interprets the
//! values by the types of their keys.

use serde_json::Value;

use super::error::SourceSpan;

#[derive(Clone, Debug)]
pub(super) struct ConfigNode {
    pub(super) tree: Tree,
    pub(super) span: Option<SourceSpan>,
}

#[derive(Clone, Debug)]
pub(super) enum Tree {
    Scalar(Scalar),
    List(Vec<ConfigNode>),
    Map(Vec<NodeEntry>),
}

#[derive(Clone, Debug)]
pub(super) struct NodeEntry {
    pub(super) key: String,
    pub(super) span: Option<SourceSpan>,
    pub(super) node: ConfigNode,
}

/// A single value. `plain`: without quotes, so that it may be a number, a flag or null.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) plain: bool,
}

impl ConfigNode {
    pub(super) fn scalar(text: impl Into<String>, plain: bool) -> Self {
        Self { tree: Tree::Scalar(Scalar { text: text.into(), plain }), span: None }
    }

    pub(super) fn map(entries: Vec<NodeEntry>) -> Self {
        Self { tree: Tree::Map(entries), span: None }
    }

    /// Returns a node that contains `node` under a dotted path.
    pub(super) fn nest(path: &str, node: Self) -> Self {
        path.rsplit('.').fold(node, |inner, key| {
            Self::map(vec![NodeEntry { key: key.to_owned(), span: None, node: inner }])
        })
    }

    /// Merges the keys of another node; its values override.
    pub(super) fn merge(&mut self, other: Self) {
        match (&mut self.tree, other.tree) {
            (Tree::Map(own), Tree::Map(others)) => {
                for entry in others {
                    match own.iter_mut().find(|one| one.key == entry.key) {
                        Some(one) => one.node.merge(entry.node),
                        None => own.push(entry),
                    }
                }
            }
            (tree, other_tree) => {
                *tree = other_tree;
                self.span = other.span;
            }
        }
    }

    /// Removes all source spans, for values that do not come from a file.
    pub(super) fn clear_spans(&mut self) {
        self.span = None;
        match &mut self.tree {
            Tree::Scalar(_) => {}
            Tree::List(nodes) => nodes.iter_mut().for_each(Self::clear_spans),
            Tree::Map(entries) => {
                for entry in entries {
                    entry.span = None;
                    entry.node.clear_spans();
                }
            }
        }
    }

    /// Returns a short description for messages.
    pub(super) fn display_text(&self) -> String {
        match &self.tree {
            Tree::Scalar(scalar) => scalar.display_text(),
            Tree::List(_) => "a list".to_owned(),
            Tree::Map(_) => "keys and values".to_owned(),
        }
    }
}

impl From<&Value> for ConfigNode {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::scalar("null", true),
            Value::Bool(flag) => Self::scalar(flag.to_string(), true),
            Value::Number(number) => Self::scalar(number.to_string(), true),
            Value::String(text) => Self::scalar(text.as_str(), false),
            Value::Array(items) => {
                Self { tree: Tree::List(items.iter().map(Self::from).collect()), span: None }
            }
            Value::Object(entries) => Self::map(
                entries
                    .iter()
                    .map(|(key, value)| NodeEntry {
                        key: key.clone(),
                        span: None,
                        node: Self::from(value),
                    })
                    .collect(),
            ),
        }
    }
}

impl Scalar {
    pub(super) fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// Tells whether the scalar is Python's spelling of null.
    pub(super) fn is_none(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "None" | "none")
    }

    /// Parses a boolean, in the spellings of YAML 1.2 and of YAML 1.1 (PyYAML).
    pub(super) fn flag(&self) -> Option<bool> {
        if !self.plain {
            return None;
        }
        match self.text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    pub(super) fn integer(&self) -> Option<i128> {
        let digits = self.digits()?;
        let (sign, digits) = match digits.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, digits.strip_prefix('+').unwrap_or(&digits)),
        };
        let number = match digits.get(..2) {
            Some("0x") => i128::from_str_radix(&digits[2..], 16),
            Some("0o") => i128::from_str_radix(&digits[2..], 8),
            _ => digits.parse(),
        };
        match number {
            Ok(number) => number.checked_mul(sign),
            Err(_) => {
                self.number().filter(|n| n.fract() == 0.0 && n.abs() < 1e15).map(|n| n as i128)
            }
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        self.digits()?.parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// Returns the value of a key without a declared type.
    pub(super) fn any(&self) -> Value {
        if self.is_null() {
            return Value::Null;
        }
        if let Some(integer) = self.integer().and_then(|number| i64::try_from(number).ok())
            && !self.text.contains(['.', 'e', 'E'])
        {
            return integer.into();
        }
        if let Some(number) = self.number() {
            return number.into();
        }
        match self.text.as_str() {
            "true" | "True" | "TRUE" if self.plain => true.into(),
            "false" | "False" | "FALSE" if self.plain => false.into(),
            text => text.into(),
        }
    }

    /// Returns the value for messages, quoted if it is text.
    pub(super) fn display_text(&self) -> String {
        const MAX_SHOWN_CHARS: usize = 60;
        if self.is_null() {
            return "nothing".to_owned();
        }
        let mut text: String = self.text.chars().take(MAX_SHOWN_CHARS).collect();
        if text.len() < self.text.len() {
            text.push('…');
        }
        if self.plain { format!("`{}`", text.escape_debug()) } else { format!("{text:?}") }
    }

    /// Returns the text without underscores if it may be a number.
    fn digits(&self) -> Option<String> {
        let unsigned = self.text.strip_prefix(['-', '+']).unwrap_or(&self.text);
        let first = unsigned.strip_prefix('.').unwrap_or(unsigned).chars().next();
        let may_be = self.plain && first.is_some_and(|c| c.is_ascii_digit());
        (may_be && !self.text.ends_with('_')).then(|| self.text.replace('_', ""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Scalar {
        Scalar { text: text.to_owned(), plain: true }
    }

    #[test]
    fn numbers_are_parsed_in_all_common_spellings() {
        for (text, number) in [
            ("32", 32),
            ("-1", -1),
            ("+7", 7),
            ("1_000", 1000),
            ("1e3", 1000),
            ("32.0", 32),
            ("0x10", 16),
            ("0o10", 8),
        ] {
            assert_eq!(plain(text).integer(), Some(number), "{text}");
        }
        for text in ["", "a", "1.5", "1:30", "0x", "--1", "1_", "._", "nan", "inf", ".inf", "1e999"]
        {
            assert_eq!(plain(text).integer(), None, "{text}");
        }
        assert_eq!(plain("1e-6").number(), Some(1e-6));
        assert_eq!(plain(".5").number(), Some(0.5));
        assert_eq!(Scalar { text: "5".to_owned(), plain: false }.number(), None);
    }

    #[test]
    fn undeclared_values_follow_yaml() {
        assert_eq!(plain("1e-6").any(), Value::from(1e-6));
        assert_eq!(plain("5").any(), Value::from(5));
        assert_eq!(plain("5.0").any(), Value::from(5.0));
        assert_eq!(plain("true").any(), Value::from(true));
        assert_eq!(plain("on").any(), Value::from("on"));
        assert_eq!(plain("~").any(), Value::Null);
        assert_eq!(Scalar { text: "5".to_owned(), plain: false }.any(), Value::from("5"));
    }
}
