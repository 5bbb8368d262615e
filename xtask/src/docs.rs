//! `cargo xtask docs`: the documentation site, built by MkDocs below the target directory.
//!
//! The sources are linked into one folder with the layout of the repository, so that relative links
//! of pages work in the repository and on the site. Broken links and anchors fail the build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::shell::{CommandFailure, Shell, remove_folder};
use crate::venv;

const REQUIREMENTS: &str = "python/requirements-docs.txt";

/// Files and folders of the site: the pages and the targets of their links.
const SOURCES: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "examples",
    "crates/protocol/proto",
    "crates/sim/tests/scenarios",
];

/// Builds the site and returns its first page.
pub(crate) fn build(shell: &Shell) -> Result<PathBuf, CommandFailure> {
    let python = venv::ready(shell, "docs-venv", REQUIREMENTS)?;
    let sources = shell.target.join("docs-source");
    remove_folder(&sources)?;
    for source in SOURCES {
        let link = sources.join(source);
        let folder = link.parent().expect("a source is below the folder");
        fs::create_dir_all(folder).map_err(CommandFailure::at(folder))?;
        symlink(shell.root.join(source), &link).map_err(CommandFailure::at(&link))?;
    }
    let site = shell.target.join("docs-site");
    shell
        .program(&python)
        .split_args("-m mkdocs build --quiet --site-dir")
        .args([&site])
        .env("ROLLWAY_DOCS_SOURCE", sources)
        // MkDocs prints an announcement of another product otherwise.
        .env("NO_MKDOCS_2_WARNING", "1")
        .run()?;
    Ok(site.join("index.html"))
}
