//! From the text of a YAML file to [`ConfigNode`]s: anchors, merge keys and environment variables
//! are resolved here, and what YAML leaves open (two equal keys, several documents) is a problem.

use std::collections::BTreeMap;
use std::sync::Arc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag, options};

use super::environment;
use super::error::{ConfigProblem, SourceFile, SourceSpan};
use super::node::{ConfigNode, NodeEntry, Scalar, Tree};

/// How many values a file may have, those that anchors repeat included.
const MAX_NODES: usize = 100_000;

/// How deep values may be nested.
const MAX_DEPTH: usize = 64;

/// Reads a text. Problems are added to the list; without a node there is at least one.
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
        nodes: 0,
        path: Vec::new(),
        problems,
    };
    match loader.document() {
        Ok(node) => Some(node),
        Err(Stop(problem)) => {
            problems.push(problem);
            None
        }
    }
}

/// A problem after which nothing more can be read.
struct Stop(ConfigProblem);

struct Loader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    source: Arc<SourceFile>,
    /// Nodes that have a name, and how many values each of them has.
    anchors: BTreeMap<usize, (ConfigNode, usize)>,
    nodes: usize,
    /// The keys that lead to where the loader is.
    path: Vec<String>,
    problems: &'a mut Vec<ConfigProblem>,
}

impl<'a> Loader<'a> {
    fn document(&mut self) -> Result<ConfigNode, Stop> {
        let mut document = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if document.is_some() => {
                    let place = self.place(span);
                    let problem = ConfigProblem::new("", "a second document begins here");
                    let hint = "a configuration is one document: remove the `---` in the middle";
                    return Err(Stop(problem.at(Some(&place)).hint(hint)));
                }
                Event::DocumentStart(..) => document = Some(self.node()?),
                _ => return Err(self.unexpected(span)),
            }
        }
        // An empty file is a configuration that says nothing.
        Ok(document.unwrap_or_else(|| ConfigNode::map(Vec::new())))
    }

    fn node(&mut self) -> Result<ConfigNode, Stop> {
        let (event, span) = self.next()?;
        self.node_of(event, span)
    }

    fn node_of(&mut self, event: Event<'a>, span: Span) -> Result<ConfigNode, Stop> {
        let before = self.nodes;
        self.count(1, span)?;
        let place = Some(self.place(span));
        let (anchor, tree) = match event {
            Event::Alias(id) => {
                let Some((node, size)) = self.anchors.get(&id).cloned() else {
                    let what = "this value contains itself";
                    return Err(Stop(ConfigProblem::new("", what).at(place.as_ref())));
                };
                self.count(size, span)?;
                return Ok(node);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && self.is_plain(tag.as_deref(), span);
                let text = self.substituted(&text, place.as_ref());
                (anchor, Tree::Scalar(Scalar { text, plain }))
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.is_plain(tag.as_deref(), span);
                (anchor, Tree::List(self.list()?))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.is_plain(tag.as_deref(), span);
                (anchor, Tree::Map(self.entries()?))
            }
            _ => return Err(self.unexpected(span)),
        };
        let node = ConfigNode { tree, place };
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before));
        }
        Ok(node)
    }

    fn list(&mut self) -> Result<Vec<ConfigNode>, Stop> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(items);
            }
            items.push(self.node_of(event, span)?);
        }
    }

    fn entries(&mut self) -> Result<Vec<NodeEntry>, Stop> {
        let mut entries: Vec<NodeEntry> = Vec::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let is_merge =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let place = Some(self.place(span));
            let key = self.node_of(event, span)?;
            let Tree::Scalar(Scalar { text: key, .. }) = key.tree else {
                let problem =
                    ConfigProblem::new("", "a key has to be a word, not a list or a mapping");
                self.problems.push(problem.at(place.as_ref()));
                self.node()?;
                continue;
            };
            self.path.push(key.clone());
            let node = self.node()?;
            let path = self.path.join(".");
            self.path.pop();
            if is_merge {
                self.merge(node, place.as_ref(), &mut merged);
            } else if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                let line = first.place.as_ref().map_or(0, |place| place.line);
                let problem =
                    ConfigProblem::new(path, format!("given twice, first in line {line}"));
                self.problems.push(problem.at(place.as_ref()).hint("keep one of them"));
            } else {
                entries.push(NodeEntry { key, place, node });
            }
        }
        for entry in merged {
            if !entries.iter().any(|one| one.key == entry.key) {
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// Collects what `<<` brings: the keys of one mapping or of several.
    fn merge(&mut self, node: ConfigNode, place: Option<&SourceSpan>, merged: &mut Vec<NodeEntry>) {
        match node.tree {
            Tree::Map(entries) => merged.extend(entries),
            Tree::List(nodes) if nodes.iter().all(|node| matches!(node.tree, Tree::Map(_))) => {
                nodes.into_iter().for_each(|node| self.merge(node, place, merged));
            }
            Tree::List(_) | Tree::Scalar(_) => {
                let problem = ConfigProblem::new("<<", "there are no keys to merge in this value");
                let hint = "`<<: *name` takes over the keys of a mapping that is marked `&name`";
                self.problems.push(problem.at(place).hint(hint));
            }
        }
    }

    /// Tells whether a scalar may be more than text; a tag that nobody knows is a problem.
    fn is_plain(&mut self, tag: Option<&Tag>, span: Span) -> bool {
        let Some(tag) = tag else { return true };
        if tag.is_yaml_core_schema_tag("str") {
            return false;
        }
        if tag.core_suffix().is_none() {
            let place = self.place(span);
            let problem = ConfigProblem::new("", format!("the tag `{tag}` means nothing here"));
            self.problems.push(problem.at(Some(&place)).hint("remove it"));
        }
        true
    }

    fn substituted(&mut self, text: &str, place: Option<&SourceSpan>) -> String {
        match environment::substitute(text, |name| std::env::var(name).ok()) {
            Ok(text) => text,
            Err(mut problem) => {
                problem.place = place.cloned();
                problem.key = self.path.join(".");
                self.problems.push(problem);
                String::new()
            }
        }
    }

    fn count(&mut self, nodes: usize, span: Span) -> Result<(), Stop> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let what = format!("more than {MAX_NODES} values, those that anchors repeat included");
        Err(Stop(ConfigProblem::new("", what).at(Some(&self.place(span)))))
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Stop> {
        match self.parser.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(Stop(self.syntax(&error))),
            None => Err(Stop(ConfigProblem::new("", "the file ends too early"))),
        }
    }

    /// Says in our words what the parser does not like.
    fn syntax(&self, error: &ScanError) -> ConfigProblem {
        let mark = error.marker();
        let place = SourceSpan {
            source: Arc::clone(&self.source),
            line: mark.line() as u32,
            column: mark.col() as u32 + 1,
            width: 1,
        };
        let (what, hint) = match error.kind() {
            ErrorKind::MappingValueNotAllowed => return self.stray_colon(place),
            ErrorKind::InvalidQuotedScalarIndent => return self.open_quote(place),
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
                "no value before this one has that name".to_owned(),
                "`*name` repeats a value that is marked `&name`; if the star is meant, put the \
                 value in quotes",
            ),
            _ => {
                let what = format!("this is not YAML: {}", error.info());
                let hint = "look at the indentation, quotes and brackets of this line and the one \
                            before";
                (what, hint)
            }
        };
        ConfigProblem::new("", what).at(Some(&place)).hint(hint)
    }

    /// Explains a colon where none can be: mostly the line before is to blame.
    fn stray_colon(&self, mut place: SourceSpan) -> ConfigProblem {
        let this = place.text().to_owned();
        let indent = |line: &str| line.len() - line.trim_start().len();
        if let Some((line, number)) = self.last_before(&place, |line| !line.trim().is_empty()) {
            let begins = |c: char| c.is_alphanumeric();
            let glued = line.find(':').filter(|at| line[at + 1..].starts_with(begins));
            if let (Some(at), None) = (glued, line.find(": ")) {
                place.line = number;
                place.column = line[..at].chars().count() as u32 + 1;
                let what = "there has to be a space after this `:`";
                return ConfigProblem::new("", what).at(Some(&place)).hint("write `key: value`");
            }
            let has_value = !line.split(" #").next().unwrap_or_default().trim_end().ends_with(':');
            if has_value && indent(&this) > indent(line) {
                place.column = indent(&this) as u32 + 1;
                let what = "indented more than the line before, which has a value already";
                let hint = "give keys of one section the same indentation";
                return ConfigProblem::new("", what).at(Some(&place)).hint(hint);
            }
        }
        let hint = "one key to a line; put a value that contains `: ` in quotes";
        ConfigProblem::new("", "this `:` cannot stand here").at(Some(&place)).hint(hint)
    }

    /// Explains a quote that is not closed where its value has to end.
    fn open_quote(&self, mut place: SourceSpan) -> ConfigProblem {
        let is_quote = |c: char| matches!(c, '"' | '\'');
        if let Some((line, number)) = self.last_before(&place, |line| line.contains(is_quote)) {
            place.line = number;
            place.column = line.chars().take_while(|c| !is_quote(*c)).count() as u32 + 1;
        }
        let problem = ConfigProblem::new("", "this quote is never closed").at(Some(&place));
        problem.hint("close it on the same line")
    }

    /// Returns the last line before a place that is as asked for, and its number.
    fn last_before(&self, place: &SourceSpan, is_it: impl Fn(&str) -> bool) -> Option<(&str, u32)> {
        let lines = self.source.text.lines().zip(1..);
        lines.take_while(|(_, number)| *number < place.line).filter(|(line, _)| is_it(line)).last()
    }

    /// Stops where the parser yields what cannot follow.
    fn unexpected(&self, span: Span) -> Stop {
        Stop(ConfigProblem::new("", "this is not YAML").at(Some(&self.place(span))))
    }

    fn place(&self, span: Span) -> SourceSpan {
        let (start, end) = (span.start, span.end);
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
