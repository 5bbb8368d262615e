//! Errors for renamed commands and flags that name the new spelling.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

/// Old and new names of subcommands.
const COMMANDS: [(&str, &str); 1] = [("imitate", "mock-server")];

/// Subcommand, old and new names of its flags.
const FLAGS: [(&str, &str, &str); 10] = [
    ("mock-server", "--first-token", "--first-token-seconds"),
    ("mock-server", "--length", "--completion-tokens"),
    ("mock-server", "--update-time", "--update-seconds"),
    ("mock-server", "--fail", "--error-percent"),
    ("mock-server", "--cut", "--disconnect-percent"),
    ("mock-server", "--tool-calls", "--tool-call-percent"),
    ("mock-server", "--drift", "--retokenize"),
    ("mock-server", "--max-running", "--max-concurrent"),
    ("mock-server", "--strict", "--reject-unknown-fields"),
    ("worker", "--patience", "--connect-timeout"),
];

/// Prints a usage error or the requested help. Returns the exit code.
pub(crate) fn report(error: &clap::Error, arguments: &[OsString]) -> u8 {
    let command = arguments.get(1).and_then(|command| command.to_str()).unwrap_or_default();
    match hint(error, command) {
        Some(hint) => errln!("error: {hint}"),
        None => drop(error.print()),
    }
    u8::from(error.use_stderr()) * 2
}

/// Returns the message for a renamed command or flag.
fn hint(error: &clap::Error, command: &str) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    if let Some(old) = text(ContextKind::InvalidSubcommand) {
        let (_, new) = COMMANDS.iter().find(|(name, _)| *name == old)?;
        return Some(format!(
            "`rollway {old}` was renamed to `rollway {new}`; see `rollway {new} --help` for its \
             flags"
        ));
    }
    let old = text(ContextKind::InvalidArg)?;
    let is_it = |(of, flag, _): &&(&str, &str, &str)| *of == command && *flag == old;
    let (_, _, new) = FLAGS.iter().find(is_it)?;
    Some(format!("`{old}` of `rollway {command}` was renamed to `{new}`"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::Args;

    fn hint_for(args: &[&str]) -> Option<String> {
        let args = ["rollway"].iter().chain(args);
        let command = args.clone().nth(1).unwrap();
        hint(&Args::try_parse_from(args.clone()).unwrap_err(), command)
    }

    #[test]
    fn errors_of_renamed_commands_and_flags_name_the_new_ones() {
        let hint = hint_for(&["imitate", "vllm", "--port", "0"]).unwrap();
        assert!(hint.contains("`rollway imitate` was renamed to `rollway mock-server`"), "{hint}");
        for (command, old, new) in FLAGS {
            for flag in [old.to_owned(), format!("{old}=1")] {
                let hint = hint_for(&[command, &flag]).unwrap();
                assert!(hint.ends_with(&format!("was renamed to `{new}`")), "{hint}");
            }
        }
        assert_eq!(hint_for(&["mock-server", "--speed", "1"]), None);
        assert_eq!(hint_for(&["run", "config.yaml", "--cut", "1"]), None);
    }
}
