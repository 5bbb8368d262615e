//! Text files and packages of the repository, or of a planted one.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Dot folders of the repository; others belong to tools.
const DOT_FOLDERS: &[&str] = &[".cargo", ".ci", ".github"];

/// Folders that `.gitignore` excludes. Its other patterns match binary files.
const BUILT_FOLDERS: &[&str] = &["target", "__pycache__", "checkpoints"];

/// Sorted files and packages.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
    pub(crate) packages: Vec<Package>,
}

pub(crate) struct Package {
    /// Folder of its manifest, from the root.
    pub(crate) folder: String,
    /// Dependencies to build or run, without those of tests.
    pub(crate) dependencies: Vec<String>,
}

pub(crate) struct File {
    /// Path from the root, separated by `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Tree {
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File { path: path.into(), text: text.into() };
        Self { files: files.iter().map(file).collect(), packages: Vec::new() }
    }

    /// Takes folders and dependencies of packages.
    pub(crate) fn of_packages(packages: &[(&str, &[&str])]) -> Self {
        let package = |&(folder, dependencies): &(&str, &[&str])| Package {
            folder: folder.into(),
            dependencies: dependencies.iter().map(|name| (*name).into()).collect(),
        };
        Self { files: Vec::new(), packages: packages.iter().map(package).collect() }
    }

    /// Reads every text file below the root, except built ones.
    pub(crate) fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        walk(root, "", &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files, packages: packages(root) }
    }

    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        let file = self.files.iter().find(|file| file.path == path)?;
        Some(&file.text)
    }

    /// Iterates over the numbered lines of files by extension, from 1, with their path.
    pub(crate) fn lines(&self, extensions: &[&str]) -> impl Iterator<Item = (&str, usize, &str)> {
        let files = self.with_extension(extensions);
        files.flat_map(|file| file.lines().map(|(number, line)| (file.path.as_str(), number, line)))
    }

    /// Iterates over files by extension.
    pub(crate) fn with_extension(&self, extensions: &[&str]) -> impl Iterator<Item = &File> {
        let has = |file: &&File| extensions.contains(&file.extension());
        self.files.iter().filter(has)
    }
}

impl File {
    /// Returns the text after the last dot of the name, or nothing.
    pub(crate) fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Returns the folder of the crate whose `src` the file is in, and the path below `src`.
    pub(crate) fn in_source(&self) -> Option<(&str, &str)> {
        let (folder, path) = self.path.split_once("/src/")?;
        let is_crate = match folder.strip_prefix("crates/") {
            Some(name) => !name.contains('/'),
            None => folder == "xtask",
        };
        is_crate.then_some((folder, path))
    }

    /// Iterates over numbered lines, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// Reads the packages of the workspace from cargo.
fn packages(root: &Path) -> Vec<Package> {
    let mut command = MetadataCommand::new();
    command.manifest_path(root.join("Cargo.toml")).no_deps();
    let metadata = command.exec().expect("`cargo metadata` reads the workspace");
    let package = |package: cargo_metadata::Package| {
        let folder = package.manifest_path.parent().expect("a manifest is in a folder");
        let folder = folder.strip_prefix(&metadata.workspace_root).expect("it is in the workspace");
        let counts = |kind| kind != DependencyKind::Development;
        let dependencies = package.dependencies.into_iter().filter(|it| counts(it.kind));
        Package {
            folder: folder.to_string(),
            dependencies: dependencies.map(|it| it.name).collect(),
        }
    };
    let mut packages: Vec<_> = metadata.packages.into_iter().map(package).collect();
    packages.sort_by(|a, b| a.folder.cmp(&b.folder));
    packages
}

fn walk(root: &Path, folder: &str, files: &mut Vec<File>) {
    let entries = fs::read_dir(root.join(folder)).expect("a folder of the repository is readable");
    for entry in entries {
        let entry = entry.expect("an entry of a folder is readable");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{folder}{name}");
        let kind = entry.file_type().expect("an entry has a type");
        if name == ".git" {
            // A folder, or in a linked worktree a file.
        } else if kind.is_dir() {
            let is_ours = !name.starts_with('.') || DOT_FOLDERS.contains(&name.as_str());
            if is_ours && !BUILT_FOLDERS.contains(&name.as_str()) {
                walk(root, &format!("{path}/"), files);
            }
        } else if kind.is_file() {
            match fs::read(entry.path()) {
                // Binary files are skipped.
                Ok(bytes) => {
                    files.extend(String::from_utf8(bytes).ok().map(|text| File { path, text }))
                }
                // Temporary files of other tests may vanish.
                Err(cause) if cause.kind() == ErrorKind::NotFound => {}
                Err(cause) => panic!("{path}: {cause}"),
            }
        }
    }
}
