//! YAML parser for [`ConfigNode`]s. Resolves anchors, merge keys and environment variables; refuses
//! duplicate keys, several documents and unknown tags.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag, options};

use super::environment;
use super::error::{ConfigProblem, SourceFile, SourceSpan};
use super::node::{ConfigNode, NodeEntry, Scalar, Tree};

/// Maximum number of values in a file, including those that anchors repeat.
const MAX_NODES: usize = 100_000;

/// Maximum bytes of all texts, including those that anchors repeat.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// Maximum depth of nested values.
const MAX_DEPTH: usize = 64;

/// Parses a text and adds problems to the list. `None`: there is at least one problem.
pub(super) fn parse(
    name: &str,
    text: &str,
    problems: &mut Vec<ConfigProblem>,
) -> Option<ConfigNode> {
    let source = Arc::new(SourceFile { name: name.to_owned(), text: text.to_owned() });
    let options = options! {
        emit_comments: false,
        block_nesting_limit: MAX_DEPTH,
        flow_nesting_limit: MAX_DEPTH,
    };
    let mut loader = Loader {
        parser: Parser::new_from_str_with_options(text, options),
        source: Arc::clone(&source),
        anchors: BTreeMap::new(),
        size: NodeSize::default(),
        path: Vec::new(),
        problems,
    };
    match loader.document() {
        Ok(node) => Some(node),
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

/// Size of a node and everything in it.
#[derive(Clone, Copy, Debug, Default)]
struct NodeSize {
    values: usize,
    bytes: usize,
}

impl NodeSize {
    const VALUE: Self = Self { values: 1, bytes: 0 };

    fn text(text: &str) -> Self {
        Self { values: 0, bytes: text.len() }
    }
}

struct Loader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    source: Arc<SourceFile>,
    /// Nodes with an anchor, and the size of each.
    anchors: BTreeMap<usize, (ConfigNode, NodeSize)>,
    size: NodeSize,
    /// Keys that lead to the current node.
    path: Vec<String>,
    problems: &'a mut Vec<ConfigProblem>,
}

impl<'a> Loader<'a> {
    fn document(&mut self) -> Result<ConfigNode, ConfigProblem> {
        let mut document = None;
        loop {
            let (event, range) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if document.is_some() => {
                    let span = self.span(range);
                    let problem = ConfigProblem::new("", "a second document begins here");
                    let hint = "a configuration is one document: remove the `---` in the middle";
                    return Err(problem.at(Some(&span)).hint(hint));
                }
                Event::DocumentStart(..) => document = Some(self.node()?),
                _ => return Err(self.unexpected(range)),
            }
        }
        // An empty file has all defaults.
        Ok(document.unwrap_or_else(|| ConfigNode::map(Vec::new())))
    }

    fn node(&mut self) -> Result<ConfigNode, ConfigProblem> {
        let (event, range) = self.next()?;
        self.node_of(event, range)
    }

    fn node_of(&mut self, event: Event<'a>, range: Span) -> Result<ConfigNode, ConfigProblem> {
        let before = self.size;
        self.count(NodeSize::VALUE, range)?;
        let span = Some(self.span(range));
        let (anchor, tree) = match event {
            Event::Alias(id) => {
                let Some((_, size)) = self.anchors.get(&id) else {
                    let message = "this value contains itself";
                    return Err(ConfigProblem::new("", message).at(span.as_ref()));
                };
                // Before the copy is made.
                self.count(*size, range)?;
                return Ok(self.anchors[&id].0.clone());
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && self.is_plain(tag.as_deref(), range);
                let text = self.substituted(&text, span.as_ref());
                self.count(NodeSize::text(&text), range)?;
                (anchor, Tree::Scalar(Scalar { text, plain }))
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.is_plain(tag.as_deref(), range);
                (anchor, Tree::List(self.list()?))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.is_plain(tag.as_deref(), range);
                (anchor, Tree::Map(self.entries()?))
            }
            _ => return Err(self.unexpected(range)),
        };
        let node = ConfigNode { tree, span };
        if anchor != 0 {
            let NodeSize { values, bytes } = self.size;
            let size = NodeSize { values: values - before.values, bytes: bytes - before.bytes };
            self.count(size, range)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Vec<ConfigNode>, ConfigProblem> {
        let mut items = Vec::new();
        loop {
            let (event, range) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(items);
            }
            items.push(self.node_of(event, range)?);
        }
    }

    fn entries(&mut self) -> Result<Vec<NodeEntry>, ConfigProblem> {
        let mut entries: Vec<NodeEntry> = Vec::new();
        // Lines by key.
        let mut seen: HashMap<String, u32> = HashMap::new();
        let mut merged = Vec::new();
        loop {
            let (event, range) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let is_merge =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let span = Some(self.span(range));
            let key = self.node_of(event, range)?;
            let Tree::Scalar(Scalar { text: key, .. }) = key.tree else {
                let problem =
                    ConfigProblem::new("", "a key must be a word, not a list or a mapping");
                self.problems.push(problem.at(span.as_ref()));
                self.node()?;
                continue;
            };
            self.path.push(key.clone());
            let node = self.node()?;
            let path = self.path.join(".");
            self.path.pop();
            if is_merge {
                self.merge(node, span.as_ref(), &mut merged);
            } else if let Some(line) = seen.get(&key) {
                let problem =
                    ConfigProblem::new(path, format!("given twice, first in line {line}"));
                self.problems.push(problem.at(span.as_ref()).hint("keep one of them"));
            } else {
                seen.insert(key.clone(), span.as_ref().map_or(0, |span| span.line));
                entries.push(NodeEntry { key, span, node });
            }
        }
        entries
            .extend(merged.into_iter().filter(|entry| seen.insert(entry.key.clone(), 0).is_none()));
        Ok(entries)
    }

    /// Collects the keys of the mappings that `<<` merges.
    fn merge(&mut self, node: ConfigNode, span: Option<&SourceSpan>, merged: &mut Vec<NodeEntry>) {
        match node.tree {
            Tree::Map(entries) => merged.extend(entries),
            Tree::List(nodes) if nodes.iter().all(|node| matches!(node.tree, Tree::Map(_))) => {
                nodes.into_iter().for_each(|node| self.merge(node, span, merged));
            }
            Tree::List(_) | Tree::Scalar(_) => {
                let problem = ConfigProblem::new("<<", "this value has no keys to merge");
                let hint = "`<<: *name` takes over the keys of a mapping that is marked `&name`";
                self.problems.push(problem.at(span).hint(hint));
            }
        }
    }

    /// Tells whether a scalar may be other than text; an unknown tag is a problem.
    fn is_plain(&mut self, tag: Option<&Tag>, range: Span) -> bool {
        let Some(tag) = tag else { return true };
        if tag.is_yaml_core_schema_tag("str") {
            return false;
        }
        if tag.core_suffix().is_none() {
            let span = self.span(range);
            let problem = ConfigProblem::new("", format!("unknown tag `{tag}`"));
            self.problems.push(problem.at(Some(&span)).hint("remove it"));
        }
        true
    }

    fn substituted(&mut self, text: &str, span: Option<&SourceSpan>) -> String {
        match environment::substitute(text, |name| std::env::var(name).ok()) {
            Ok(text) => text,
            Err(mut problem) => {
                problem.span = span.cloned();
                problem.key = self.path.join(".");
                self.problems.push(problem);
                String::new()
            }
        }
    }

    fn count(&mut self, added: NodeSize, range: Span) -> Result<(), ConfigProblem> {
        let size = &mut self.size;
        size.values = size.values.saturating_add(added.values);
        size.bytes = size.bytes.saturating_add(added.bytes);
        let message = if size.values > MAX_NODES {
            format!("more than {MAX_NODES} values, including those that anchors repeat")
        } else if size.bytes > MAX_TEXT_BYTES {
            format!("more than {MAX_TEXT_BYTES} bytes, including those that anchors repeat")
        } else {
            return Ok(());
        };
        Err(ConfigProblem::new("", message).at(Some(&self.span(range))))
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), ConfigProblem> {
        match self.parser.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Err(ConfigProblem::new("", "the file ends too early")),
        }
    }

    /// Converts an error of the parser.
    fn syntax(&self, error: &ScanError) -> ConfigProblem {
        let mark = error.marker();
        let span = SourceSpan {
            source: Arc::clone(&self.source),
            line: mark.line() as u32,
            column: mark.col() as u32 + 1,
            width: 1,
        };
        let (message, hint) = match error.kind() {
            ErrorKind::MappingValueNotAllowed => return self.stray_colon(span),
            ErrorKind::InvalidQuotedScalarIndent => return self.open_quote(span),
            ErrorKind::TabInBlockIndentation => {
                ("a tab in the indentation".to_owned(), "indent with spaces")
            }
            ErrorKind::UnclosedFlowCollection { open } => (
                format!("this `{open}` is never closed"),
                "close it, and separate values by commas",
            ),
            ErrorKind::UnclosedQuotedScalar => {
                ("this quote is never closed".to_owned(), "close it on the same line")
            }
            ErrorKind::UnexpectedCharacter { character } => (
                format!("a value cannot begin with `{}`", character.escape_debug()),
                "put the value in quotes",
            ),
            ErrorKind::UnknownAnchor => (
                "no earlier value has this anchor".to_owned(),
                "`*name` repeats a value that is marked `&name`; if the star is meant, put the \
                 value in quotes",
            ),
            _ => {
                let message = format!("this is not YAML: {}", error.info());
                let hint =
                    "check indentation, quotes and brackets of this line and those before it";
                (message, hint)
            }
        };
        ConfigProblem::new("", message).at(Some(&span)).hint(hint)
    }

    /// Explains an unexpected colon; the cause is often the line before.
    fn stray_colon(&self, mut span: SourceSpan) -> ConfigProblem {
        let this = span.text().to_owned();
        let indent = |line: &str| line.len() - line.trim_start().len();
        if let Some((line, number)) = self.last_before(&span, |line| !line.trim().is_empty()) {
            let begins = |c: char| c.is_alphanumeric();
            let glued = line.find(':').filter(|at| line[at + 1..].starts_with(begins));
            if let (Some(at), None) = (glued, line.find(": ")) {
                span.line = number;
                span.column = line[..at].chars().count() as u32 + 1;
                let message = "a space is missing after this `:`";
                return ConfigProblem::new("", message).at(Some(&span)).hint("write `key: value`");
            }
            let has_value = !line.split(" #").next().unwrap_or_default().trim_end().ends_with(':');
            if has_value && indent(&this) > indent(line) {
                span.column = indent(&this) as u32 + 1;
                let message = "indented more than the line before, which already has a value";
                let hint = "give keys of one section the same indentation";
                return ConfigProblem::new("", message).at(Some(&span)).hint(hint);
            }
        }
        let hint = "one key to a line; put a value that contains `: ` in quotes";
        ConfigProblem::new("", "unexpected `:`").at(Some(&span)).hint(hint)
    }

    /// Explains a quote that is not closed on its line.
    fn open_quote(&self, mut span: SourceSpan) -> ConfigProblem {
        let is_quote = |c: char| matches!(c, '"' | '\'');
        if let Some((line, number)) = self.last_before(&span, |line| line.contains(is_quote)) {
            span.line = number;
            span.column = line.chars().take_while(|c| !is_quote(*c)).count() as u32 + 1;
        }
        let problem = ConfigProblem::new("", "this quote is never closed").at(Some(&span));
        problem.hint("close it on the same line")
    }

    /// Returns the last line before a span that satisfies a condition, and its number.
    fn last_before(
        &self,
        span: &SourceSpan,
        condition: impl Fn(&str) -> bool,
    ) -> Option<(&str, u32)> {
        let lines = self.source.text.lines().zip(1..);
        lines
            .take_while(|(_, number)| *number < span.line)
            .filter(|(line, _)| condition(line))
            .last()
    }

    fn unexpected(&self, range: Span) -> ConfigProblem {
        ConfigProblem::new("", "this is not YAML").at(Some(&self.span(range)))
    }

    fn span(&self, range: Span) -> SourceSpan {
        let (start, end) = (range.start, range.end);
        let width =
            if start.line() == end.line() { end.col().saturating_sub(start.col()) } else { 1 };
        SourceSpan {
            source: Arc::clone(&self.source),
            line: start.line() as u32,
            column: start.col() as u32 + 1,
            width: width.max(1) as u32,
        }
    }
}
