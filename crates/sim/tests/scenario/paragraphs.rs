//! Paragraphs of a scenario file: prose and cases.

use super::tokens::{self, BadScript, CommandTokens};

/// Line between commands and expected actions.
const RULE: &str = "----";

pub(super) enum Paragraph {
    Prose(Vec<String>),
    Case(Case),
}

pub(super) struct Case {
    /// Lines with commands, as written.
    source: Vec<String>,
    pub(super) commands: Vec<CommandTokens>,
    pub(super) expected: Vec<String>,
    pub(super) expected_line: usize,
}

pub(super) fn parse(text: &str) -> Result<Vec<Paragraph>, BadScript> {
    let mut paragraphs = Vec::new();
    let mut lines: Vec<(usize, &str)> = Vec::new();
    for (number, line) in (1..).zip(text.lines().chain([""])) {
        let line = line.trim_end();
        if !line.is_empty() {
            lines.push((number, line));
        } else if !lines.is_empty() {
            paragraphs.push(paragraph(&std::mem::take(&mut lines))?);
        }
    }
    Ok(paragraphs)
}

fn paragraph(lines: &[(usize, &str)]) -> Result<Paragraph, BadScript> {
    let Some(rule) = lines.iter().position(|(_, line)| *line == RULE) else {
        let (number, first) = lines[0];
        // Commands are in lower case: this is a case without its rule.
        if first.starts_with(char::is_lowercase) {
            return Err(BadScript::new(number, "a case without a line `----`", first));
        }
        let prose = lines.iter().map(|(_, line)| (*line).to_owned()).collect();
        return Ok(Paragraph::Prose(prose));
    };
    let (above, below) = (&lines[..rule], &lines[rule + 1..]);
    let mut commands = Vec::new();
    for (number, line) in above {
        commands.extend(tokens::split(*number, line)?);
    }
    if commands.is_empty() {
        return Err(BadScript::new(lines[rule].0, "no commands above", RULE));
    }
    let owned = |lines: &[(usize, &str)]| -> Vec<String> {
        lines.iter().map(|(_, line)| (*line).to_owned()).collect()
    };
    Ok(Paragraph::Case(Case {
        source: owned(above),
        commands,
        expected: owned(below),
        expected_line: lines[rule].0 + 1,
    }))
}

/// Formats the paragraphs as a file.
pub(super) fn render(paragraphs: &[Paragraph]) -> String {
    let blocks: Vec<String> = paragraphs
        .iter()
        .map(|paragraph| match paragraph {
            Paragraph::Prose(lines) => lines.join("\n"),
            Paragraph::Case(case) => {
                let (source, expected) = (case.source.iter(), case.expected.iter());
                let lines: Vec<&str> = (source.map(String::as_str))
                    .chain([RULE])
                    .chain(expected.map(String::as_str))
                    .collect();
                lines.join("\n")
            }
        })
        .collect();
    blocks.join("\n\n") + "\n"
}
