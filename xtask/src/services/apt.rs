//! Debian's packages without installing them: an apt of our own fetches them, with signatures and
//! checksums checked, and they are unpacked below the target directory. The machine stays as it is,
//! and nobody has to be root.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::shell::{CommandFailure, Shell};

/// Where apt looks for the keys of Debian's releases.
const KEYS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// What the machine has installed.
const STATUS: &str = "/var/lib/dpkg/status";

/// An apt that writes nothing of the machine's own.
#[derive(Debug)]
pub(crate) struct Apt {
    home: PathBuf,
}

impl Apt {
    /// An apt of a release of Debian that believes nothing is installed, so that everything that a
    /// package needs comes along, down to the C library.
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
        write(&list, &format!("deb {signed}{mirror} {release} main\n"))?;
        write(&apt.home.join("state/status"), "")?;
        let sources = format!(
            "Dir::Etc::sourcelist \"{home}/sources.list\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n"
        );
        write(&apt.conf(), &(sources + &settings(&apt.home)))?;
        Ok(apt)
    }

    /// An apt with the sources of the machine that knows what is installed, so that only what is
    /// missing comes.
    pub(crate) fn of_machine(home: &Path) -> Result<Self, CommandFailure> {
        let apt = Self::new(home)?;
        let status = apt.home.join("state/status");
        fs::copy(STATUS, &status)
            .map_err(|cause| CommandFailure::file(Path::new(STATUS), &cause))?;
        write(&apt.conf(), &settings(&apt.home))?;
        Ok(apt)
    }

    fn new(home: &Path) -> Result<Self, CommandFailure> {
        let home = home.join("apt");
        remove(&home)?;
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            create(&home.join(folder))?;
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
        let command = |words| {
            let apt = shell.program(Path::new("apt-get")).words("-qq --config-file");
            apt.args([self.conf()]).words(words)
        };
        command("update").run()?;
        command("install --yes --download-only --no-install-recommends").args(packages).run()?;
        remove(root)?;
        create(root)?;
        for package in entries(&self.home.join("cache/archives"))? {
            if package.extension().is_some_and(|extension| extension == "deb") {
                let unpack = shell.program(Path::new("dpkg-deb")).words("--extract");
                unpack.args([package.as_path(), root]).output()?;
            }
        }
        Ok(())
    }

    /// Removes what was downloaded.
    pub(crate) fn clean(self) -> Result<(), CommandFailure> {
        remove(&self.home)
    }
}

/// Returns the root of the Debian mirror that the machine's apt is set up with.
fn mirror(shell: &Shell) -> Result<String, CommandFailure> {
    let plan = shell.program(Path::new("apt-get")).words("update --print-uris").output()?;
    root_of_mirror(&plan)
        .ok_or_else(|| CommandFailure::new("this machine's apt knows no Debian mirror"))
}

/// Finds the mirror in what `apt-get update` would fetch: lines that begin with a quoted address.
fn root_of_mirror(plan: &str) -> Option<String> {
    plan.lines()
        .filter_map(|line| line.strip_prefix('\'')?.split_once("/dists/"))
        .map(|(root, _)| root)
        .find(|root| root.ends_with("/debian"))
        .map(String::from)
}

/// The settings of an apt that reads and writes nothing of the machine's own, except how the
/// network is reached.
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

/// Writes a script that starts a program inside what was unpacked, tries it, and gives it its name
/// last, so that an interrupted installation begins again.
pub(crate) fn script(
    shell: &Shell,
    path: &Path,
    text: &str,
    try_with: &str,
) -> Result<(), CommandFailure> {
    let draft = path.with_extension("draft");
    write(&draft, text)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))
        .map_err(|cause| CommandFailure::file(&draft, &cause))?;
    shell.program(&draft).words(try_with).output()?;
    fs::rename(&draft, path).map_err(|cause| CommandFailure::file(path, &cause))
}

pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, CommandFailure> {
    let entries = fs::read_dir(folder).map_err(|cause| CommandFailure::file(folder, &cause))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

pub(crate) fn create(folder: &Path) -> Result<(), CommandFailure> {
    fs::create_dir_all(folder).map_err(|cause| CommandFailure::file(folder, &cause))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), CommandFailure> {
    fs::write(path, text).map_err(|cause| CommandFailure::file(path, &cause))
}

pub(crate) fn remove(folder: &Path) -> Result<(), CommandFailure> {
    match fs::remove_dir_all(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Err(CommandFailure::file(folder, &cause))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_the_machine_and_not_that_of_its_security_updates() {
        let plan = "'http://mirror/debian-security/dists/stable-security/InRelease' a 0 \n\
                    'http://mirror/debian/dists/stable/InRelease' b 0 \n";
        assert_eq!(root_of_mirror(plan).as_deref(), Some("http://mirror/debian"));
        assert_eq!(root_of_mirror("'http://mirror/ubuntu/dists/noble/InRelease' c 0"), None);
        assert_eq!(root_of_mirror("nothing to do"), None);
    }
}
