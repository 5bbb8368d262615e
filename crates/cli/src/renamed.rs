//! Usage errors with a remedy: renamed commands and flags, overrides that are written as flags.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

/// Old and new names of subcommands.
const COMMANDS: [(&str, &str); 1] = [("imitate", "mock-server")];

/// Modes of `rollway run` that read like subcommands.
const MODES: [&str; 6] = ["bench", "both", "explore", "serve", "simulate", "train"];

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
    match hint(error, command).or_else(|| override_hint(error, command)) {
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
        if MODES.contains(&old) {
            return Some(format!(
                "`{old}` is a mode of jobs: `rollway run job.yaml mode={old}`, or `mode: {old}` in \
                 the file"
            ));
        }
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

/// Commands whose last arguments replace keys of the configuration.
const WITH_OVERRIDES: [&str; 3] = ["run", "check", "debug"];

/// Returns the message for a key of the configuration that is written as a flag.
fn override_hint(error: &clap::Error, command: &str) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let key = flag.strip_prefix("--")?;
    let is_key = key.contains('.') && WITH_OVERRIDES.contains(&command);
    is_key.then(|| {
        format!(
            "unknown flag `{flag}`\nhint: a key of the configuration is replaced without dashes, \
             after the file: `rollway {command} job.yaml {key}=VALUE`"
        )
    })
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
        for mode in ["bench", "both", "explore", "serve", "simulate", "train"] {
            let hint = hint_for(&[mode, "job.yaml"]).unwrap();
            assert!(hint.contains(&format!("`rollway run job.yaml mode={mode}`")), "{hint}");
        }
        assert_eq!(hint_for(&["mock-server", "--speed", "1"]), None);
        assert_eq!(hint_for(&["run", "config.yaml", "--cut", "1"]), None);
    }

    #[test]
    fn keys_that_are_written_as_flags_are_shown_as_overrides() {
        let hint = |args: &[&str]| {
            let args = ["rollway"].iter().chain(args);
            override_hint(&Args::try_parse_from(args.clone()).unwrap_err(), args.clone().nth(1)?)
        };
        for flag in [&["--buffer.total_steps", "5"][..], &["--buffer.total_steps=5"]] {
            let hint = hint(&[&["run", "job.yaml"], flag].concat()).unwrap();
            assert!(hint.ends_with("`rollway run job.yaml buffer.total_steps=VALUE`"), "{hint}");
        }
        assert_eq!(hint(&["run", "job.yaml", "--fast"]), None);
        assert_eq!(hint(&["mock-server", "--a.b"]), None);
    }
}
