//! `cargo deny` of the test command: licences, bans and sources, and advisories if their database
//! can be fetched. Skipped without the program, which takes minutes to build.

use crate::shell::{CommandFailure, Shell};

pub(crate) fn test(shell: &Shell) -> Result<(), CommandFailure> {
    if shell.cargo("deny --version").output().is_err() {
        println!(
            "skipped: cargo-deny is not installed (cargo install --locked cargo-deny); the step \
             `rust` checks licences and sources"
        );
        return Ok(());
    }
    shell.cargo("deny check licenses bans sources").run()?;
    if let Err(failure) = shell.cargo("deny fetch db").output() {
        println!("skipped: the database of advisories cannot be fetched: {failure}");
        return Ok(());
    }
    shell.cargo("deny check --disable-fetch advisories").run()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    /// Runs the step with a cargo that fails for arguments with this text; returns the result and
    /// the calls.
    fn calls(failing: &str) -> (bool, Vec<String>) {
        let folder = std::env::temp_dir().join(format!("deny-{}-{failing}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (cargo, log) = (folder.join("cargo"), folder.join("log"));
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> '{}'\ncase \"$*\" in *{failing}*) exit 1;; esac\n",
            log.display()
        );
        fs::write(&cargo, script).unwrap();
        fs::set_permissions(&cargo, Permissions::from_mode(0o755)).unwrap();
        let done = test(&Shell::with_cargo(Path::new(&cargo))).is_ok();
        let calls = fs::read_to_string(&log).unwrap().lines().map(str::to_owned).collect();
        fs::remove_dir_all(&folder).unwrap();
        (done, calls)
    }

    #[test]
    fn findings_fail_and_a_missing_program_or_database_does_not() {
        let (version, rules) = ("deny --version", "deny check licenses bans sources");
        let (fetch, advisories) = ("deny fetch db", "deny check --disable-fetch advisories");
        let expected = |done, calls: &[&str]| {
            (done, calls.iter().map(|call| (*call).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(calls("version"), expected(true, &[version]));
        assert_eq!(calls("bans"), expected(false, &[version, rules]));
        assert_eq!(calls("fetch-db"), expected(true, &[version, rules, fetch, advisories]));
        assert_eq!(calls("db"), expected(true, &[version, rules, fetch]));
        assert_eq!(calls("advisories"), expected(false, &[version, rules, fetch, advisories]));
    }
}
