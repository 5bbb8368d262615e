//! Debian packages unpacked below the target directory: a private apt fetches them and checks
//! signatures and checksums. Needs no root and changes nothing on the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::shell::{CommandFailure, Shell, create_folder, entries, remove_folder, write_file};

/// Keyrings of Debian's releases.
const KEYS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// The machine's list of installed packages.
const STATUS: &str = "/var/lib/dpkg/status";

/// An apt with its own state.
#[derive(Debug)]
pub(crate) struct Apt {
    home: PathBuf,
}

impl Apt {
    /// For a Debian release and without installed packages, so that all dependencies are fetched,
    /// down to the C library.
    pub(crate) fn of_release(
        shell: &Shell,
        home: &Path,
        release: &str,
    ) -> Result<Self, CommandFailure> {
        let mirror = mirror(shell)?;
        let apt = Self::new(home)?;
        let key = KEYS.iter().find(|key| Path::new(key).exists());
        let signed = key.map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
        let home = apt.home.display();
        let list = apt.home.join("sources.list");
        write_file(&list, format!("deb {signed}{mirror} {release} main\n"))?;
        write_file(&apt.home.join("state/status"), "")?;
        let sources = format!(
            "Dir::Etc::sourcelist \"{home}/sources.list\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n"
        );
        write_file(&apt.conf(), sources + &settings(&apt.home))?;
        Ok(apt)
    }

    /// With the machine's sources and installed packages, so that only missing ones are fetched.
    pub(crate) fn of_machine(home: &Path) -> Result<Self, CommandFailure> {
        let apt = Self::new(home)?;
        let status = apt.home.join("state/status");
        fs::copy(STATUS, &status).map_err(CommandFailure::at(Path::new(STATUS)))?;
        write_file(&apt.conf(), settings(&apt.home))?;
        Ok(apt)
    }

    fn new(home: &Path) -> Result<Self, CommandFailure> {
        let home = home.join("apt");
        remove_folder(&home)?;
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            create_folder(&home.join(folder))?;
        }
        Ok(Self { home })
    }

    fn conf(&self) -> PathBuf {
        self.home.join("apt.conf")
    }

    /// Downloads packages and unpacks them into a folder.
    pub(crate) fn unpack(
        &self,
        shell: &Shell,
        packages: &[&str],
        root: &Path,
    ) -> Result<(), CommandFailure> {
        let command = |arguments| {
            let apt = shell.program(Path::new("apt-get")).split_args("-qq --config-file");
            apt.args([self.conf()]).split_args(arguments)
        };
        command("update").run()?;
        command("install --yes --download-only --no-install-recommends").args(packages).run()?;
        remove_folder(root)?;
        create_folder(root)?;
        for package in entries(&self.home.join("cache/archives"))? {
            if package.extension().is_some_and(|extension| extension == "deb") {
                let unpack = shell.program(Path::new("dpkg-deb")).split_args("--extract");
                unpack.args([package.as_path(), root]).output()?;
            }
        }
        Ok(())
    }

    /// Removes the downloads.
    pub(crate) fn clean(self) -> Result<(), CommandFailure> {
        remove_folder(&self.home)
    }
}

/// Returns the root of the Debian mirror of the machine's apt.
fn mirror(shell: &Shell) -> Result<String, CommandFailure> {
    let plan = shell.program(Path::new("apt-get")).split_args("update --print-uris").output()?;
    root_of_mirror(&plan)
        .ok_or_else(|| CommandFailure::new("apt has no Debian mirror on this machine"))
}

/// Finds the mirror in the output of `apt-get update --print-uris`: lines that begin with a quoted
/// address.
fn root_of_mirror(plan: &str) -> Option<String> {
    plan.lines()
        .filter_map(|line| line.strip_prefix('\'')?.split_once("/dists/"))
        .map(|(root, _)| root)
        .find(|root| root.ends_with("/debian"))
        .map(String::from)
}

/// Settings of a private apt; only the network configuration is the machine's.
fn settings(apt: &Path) -> String {
    let apt = apt.display();
    format!(
        r#"Dir::State "{apt}/state";
Dir::State::lists "{apt}/state/lists";
Dir::State::status "{apt}/state/status";
Dir::Cache "{apt}/cache";
Dir::Cache::archives "{apt}/cache/archives";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"#
    )
}

/// Writes an executable script, tries it, and renames it last, so that an interrupted installation
/// starts over.
pub(crate) fn script(
    shell: &Shell,
    path: &Path,
    text: &str,
    try_with: &str,
) -> Result<(), CommandFailure> {
    let draft = path.with_extension("draft");
    write_file(&draft, text)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))
        .map_err(CommandFailure::at(&draft))?;
    shell.program(&draft).split_args(try_with).output()?;
    fs::rename(&draft, path).map_err(CommandFailure::at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_not_that_of_security_updates() {
        let plan = "'http://mirror/debian-security/dists/stable-security/InRelease' a 0 \n\
                    'http://mirror/debian/dists/stable/InRelease' b 0 \n";
        assert_eq!(root_of_mirror(plan).as_deref(), Some("http://mirror/debian"));
        assert_eq!(root_of_mirror("'http://mirror/ubuntu/dists/noble/InRelease' c 0"), None);
        assert_eq!(root_of_mirror("nothing to do"), None);
    }
}
