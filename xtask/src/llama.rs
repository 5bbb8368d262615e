//! The real inference server of the tests, `llama-server` of llama.cpp: the machine's own, or one
//! that is unpacked below the target directory; and a tiny model for it.
//!
//! It comes from the packages of a newer Debian, through the mirror that the machine's apt uses.
//! They are unpacked with everything they need, down to the C library, and not installed: the
//! machine stays as it is, and nobody has to be root. apt checks signatures and checksums.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::gguf;
use crate::shell::{Failure, Shell};

/// The releases of Debian that are tried, in order.
const RELEASES: [&str; 2] = ["forky", "sid"];

/// The package that brings the server.
const PACKAGE: &str = "llama.cpp-tools";

const PROGRAM: &str = "llama-server";

/// Where apt looks for the keys of Debian's releases.
const KEYS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];

/// A server that can be started, and what it can load.
#[derive(Debug)]
pub(crate) struct Llama {
    pub(crate) server: PathBuf,
    pub(crate) model: PathBuf,
}

/// Installs a server if the machine has none, writes the model, and returns where they are.
pub(crate) fn ready(shell: &Shell) -> Result<Llama, Failure> {
    let home = shell.target.join("llama");
    create(&home)?;
    let model = home.join("tiny.gguf");
    fs::write(&model, gguf::tiny()).map_err(|cause| Failure::file(&model, &cause))?;
    let ours = home.join(PROGRAM);
    let server = elsewhere().into_iter().chain([ours]).find(|program| program.is_file());
    let server = match server {
        Some(server) => server,
        None => install(shell, &home).map_err(|failure| {
            failure.hint(
                "the tests need llama.cpp's `llama-server`; install your system's package, or set \
                 ROLLWAY_LLAMA_SERVER to the program",
            )
        })?,
    };
    Ok(Llama { server, model })
}

/// Returns where the machine may have a server.
fn elsewhere() -> Vec<PathBuf> {
    let named = env::var_os("ROLLWAY_LLAMA_SERVER").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    named.into_iter().chain(folders).collect()
}

fn install(shell: &Shell, home: &Path) -> Result<PathBuf, Failure> {
    let mirror = mirror(shell)?;
    let mut failed = None;
    for release in RELEASES {
        match fetch(shell, home, &mirror, release) {
            Ok(packages) => return unpack(shell, home, &packages),
            Err(failure) => failed = Some(failure),
        }
    }
    Err(failed.unwrap_or_else(|| Failure::new("there is no release to try")))
}

/// Returns the root of the Debian mirror that the machine's apt is set up with.
fn mirror(shell: &Shell) -> Result<String, Failure> {
    let plan = shell.program(Path::new("apt-get")).words("update --print-uris").output()?;
    root_of_mirror(&plan).ok_or_else(|| Failure::new("this machine's apt knows no Debian mirror"))
}

/// Finds the mirror in what `apt-get update` would fetch: lines that begin with a quoted address.
fn root_of_mirror(plan: &str) -> Option<String> {
    plan.lines()
        .filter_map(|line| line.strip_prefix('\'')?.split_once("/dists/"))
        .map(|(root, _)| root)
        .find(|root| root.ends_with("/debian"))
        .map(String::from)
}

/// Downloads the packages of a release, with an apt of our own that believes nothing is installed,
/// and returns where they are.
fn fetch(shell: &Shell, home: &Path, mirror: &str, release: &str) -> Result<PathBuf, Failure> {
    let apt = home.join("apt");
    remove(&apt)?;
    let archives = apt.join("cache/archives");
    for folder in [apt.join("state/lists/partial"), archives.join("partial")] {
        create(&folder)?;
    }
    let key = KEYS.iter().find(|key| Path::new(key).exists());
    let signed = key.map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
    write(&apt.join("sources.list"), &format!("deb {signed}{mirror} {release} main\n"))?;
    write(&apt.join("state/status"), "")?;

    let conf = apt.join("apt.conf");
    write(&conf, &settings(&apt))?;
    let command = |words| {
        let apt = shell.program(Path::new("apt-get")).words("-qq --config-file");
        apt.args([&conf]).words(words)
    };
    command("update").run()?;
    command("install --yes --download-only --no-install-recommends").args([PACKAGE]).run()?;
    Ok(archives)
}

/// The settings of an apt that reads and writes nothing of the machine's own, except how the
/// network is reached.
fn settings(apt: &Path) -> String {
    let apt = apt.display();
    format!(
        r#"Dir::Etc::sourcelist "{apt}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{apt}/state";
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

/// Unpacks the packages and writes a script that starts the server inside them.
fn unpack(shell: &Shell, home: &Path, packages: &Path) -> Result<PathBuf, Failure> {
    let root = home.join("root");
    remove(&root)?;
    create(&root)?;
    for package in entries(packages)? {
        if package.extension().is_some_and(|extension| extension == "deb") {
            let unpack = shell.program(Path::new("dpkg-deb")).words("--extract");
            unpack.args([&package, &root]).output()?;
        }
    }
    let lib = root.join("usr/lib");
    let libraries = found(&lib, "libllama.so.0")?;
    let backends = first_folder(&libraries.join("ggml"))?;
    let linker = entries(&libraries)?
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| is_linker(&name.to_string_lossy())))
        .ok_or_else(|| Failure::new(format!("no dynamic linker in {}", libraries.display())))?;
    // The server looks for the code of each kind of processor beside the program that runs, which
    // is the dynamic linker here.
    let here = backends.join("ld.so");
    fs::copy(&linker, &here).map_err(|cause| Failure::file(&here, &cause))?;

    let server = home.join(PROGRAM);
    let libraries = [libraries.clone(), libraries.join("llama")];
    let script = format!(
        "#!/bin/sh\nexec '{}' --library-path '{}' '{}' \"$@\"\n",
        here.display(),
        libraries.map(|folder| folder.display().to_string()).join(":"),
        root.join("usr/bin").join(PROGRAM).display(),
    );
    let draft = home.join("draft");
    write(&draft, &script)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))
        .map_err(|cause| Failure::file(&draft, &cause))?;
    shell.program(&draft).words("--version").output()?;
    // Invariant: the script gets its name last, so an interrupted installation begins again.
    fs::rename(&draft, &server).map_err(|cause| Failure::file(&server, &cause))?;
    remove(&home.join("apt"))?;
    Ok(server)
}

fn is_linker(name: &str) -> bool {
    name.starts_with("ld-linux") && name.contains(".so.")
}

/// Returns the folder below `folder` that has a file.
fn found(folder: &Path, file: &str) -> Result<PathBuf, Failure> {
    let holder = entries(folder)?.into_iter().find(|inner| inner.join(file).exists());
    holder.ok_or_else(|| Failure::new(format!("no {file} below {}", folder.display())))
}

fn first_folder(folder: &Path) -> Result<PathBuf, Failure> {
    let first = entries(folder)?.into_iter().find(|inner| inner.is_dir());
    first.ok_or_else(|| Failure::new(format!("no folder in {}", folder.display())))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|cause| Failure::file(folder, &cause))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn create(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|cause| Failure::file(folder, &cause))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|cause| Failure::file(path, &cause))
}

fn remove(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(Failure::file(folder, &cause)),
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

    #[test]
    fn the_dynamic_linker_is_known_on_every_processor() {
        assert!(is_linker("ld-linux-x86-64.so.2") && is_linker("ld-linux-aarch64.so.1"));
        assert!(!is_linker("libllama.so.0"));
    }
}
