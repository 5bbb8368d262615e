//! A configuration as it was written: keys, values and where each of them stands. What the values
//! mean is decided by the reader, who knows which key wants what.

use serde_json::Value;

use super::error::SourceSpan;

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct ConfigNode {
    pub(super) tree: Tree,
    pub(super) place: Option<SourceSpan>,
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
    pub(super) place: Option<SourceSpan>,
    pub(super) node: ConfigNode,
}

/// A single value: the text, and whether it stands without quotes and so may be more than text.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) plain: bool,
}

impl ConfigNode {
    pub(super) fn scalar(text: impl Into<String>, plain: bool) -> Self {
        Self { tree: Tree::Scalar(Scalar { text: text.into(), plain }), place: None }
    }

    pub(super) fn map(entries: Vec<NodeEntry>) -> Self {
        Self { tree: Tree::Map(entries), place: None }
    }

    /// Returns the node that holds another under a dotted path.
    pub(super) fn nest(path: &str, node: Self) -> Self {
        path.rsplit('.').fold(node, |inner, key| {
            Self::map(vec![NodeEntry { key: key.to_owned(), place: None, node: inner }])
        })
    }

    /// Adds what another node says; where both say something, the other one wins.
    pub(super) fn merge(&mut self, other: Self) {
        match (&mut self.tree, other.tree) {
            (Tree::Map(mine), Tree::Map(theirs)) => {
                for entry in theirs {
                    match mine.iter_mut().find(|one| one.key == entry.key) {
                        Some(one) => one.node.merge(entry.node),
                        None => mine.push(entry),
                    }
                }
            }
            (tree, theirs) => {
                *tree = theirs;
                self.place = other.place;
            }
        }
    }

    /// Takes away all places, for values that do not come from a file.
    pub(super) fn forget_places(&mut self) {
        self.place = None;
        match &mut self.tree {
            Tree::Scalar(_) => {}
            Tree::List(nodes) => nodes.iter_mut().for_each(Self::forget_places),
            Tree::Map(entries) => {
                for entry in entries {
                    entry.place = None;
                    entry.node.forget_places();
                }
            }
        }
    }

    /// Returns the value in a few words, to be shown to people.
    pub(super) fn shown(&self) -> String {
        match &self.tree {
            Tree::Scalar(scalar) => scalar.shown(),
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
                Self { tree: Tree::List(items.iter().map(Self::from).collect()), place: None }
            }
            Value::Object(entries) => Self::map(
                entries
                    .iter()
                    .map(|(key, value)| NodeEntry {
                        key: key.clone(),
                        place: None,
                        node: Self::from(value),
                    })
                    .collect(),
            ),
        }
    }
}

impl Scalar {
    /// Tells whether the scalar stands for "no value".
    pub(super) fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// Tells whether the scalar is how Python spells "no value".
    pub(super) fn is_none(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "None" | "none")
    }

    /// Returns the truth value, in the spellings of YAML 1.2 and of the older YAML that PyYAML
    /// reads.
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

    /// Returns what it is where nobody said what it should be.
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

    /// Returns the value, with quotes where they make a difference.
    pub(super) fn shown(&self) -> String {
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

    /// Returns the text if it may be a number, without the underscores between digits.
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
    fn numbers_are_read_in_every_usual_spelling() {
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
    fn what_nobody_declared_is_read_as_yaml_has_it() {
        assert_eq!(plain("1e-6").any(), Value::from(1e-6));
        assert_eq!(plain("5").any(), Value::from(5));
        assert_eq!(plain("5.0").any(), Value::from(5.0));
        assert_eq!(plain("true").any(), Value::from(true));
        assert_eq!(plain("on").any(), Value::from("on"));
        assert_eq!(plain("~").any(), Value::Null);
        assert_eq!(Scalar { text: "5".to_owned(), plain: false }.any(), Value::from("5"));
    }
}
