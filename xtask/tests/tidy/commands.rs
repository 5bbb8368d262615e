//! The commands of the README, and that the continuous integration runs the tests.

use crate::tree::Tree;

const CI: &str = ".ci/run";
/// Setup lines.
const CI_PREPARES: &[&str] = &["set -euo pipefail", r#"cd "$(dirname "$0")/..""#];
const README: &str = "README.md";
const TEST: &str = "cargo xtask test";
const RUN: &str = "cargo run --release -- run examples/arithmetic.yaml";

/// Checks that the continuous integration runs the same tests as a developer.
pub(crate) fn continuous_integration(tree: &Tree) -> Vec<String> {
    let Some(script) = tree.get(CI) else {
        return vec![format!("{CI}: missing; it calls `{TEST}`")];
    };
    let is_command = |line: &&str| {
        let is_comment = line.is_empty() || line.starts_with('#');
        !is_comment && !CI_PREPARES.contains(line)
    };
    let lines = script.lines().map(str::trim).filter(is_command);
    let commands: Vec<_> = lines.map(|line| line.strip_prefix("exec ").unwrap_or(line)).collect();
    if commands == [TEST] {
        Vec::new()
    } else {
        vec![format!("{CI}: calls {commands:?}, not `{TEST}` alone")]
    }
}

/// Checks that the README shows each command on its own line.
pub(crate) fn readme(tree: &Tree) -> Vec<String> {
    let Some(text) = tree.get(README) else {
        return vec![format!("{README}: missing; it shows `{RUN}` and `{TEST}`")];
    };
    let shown = |command: &str| {
        text.lines()
            .map(|line| line.split(" #").next().unwrap_or_default().trim())
            .any(|line| line.strip_prefix("$ ").unwrap_or(line) == command)
    };
    let missing = [RUN, TEST].into_iter().filter(|command| !shown(command));
    missing.map(|command| format!("{README}: no line `{command}`")).collect()
}
