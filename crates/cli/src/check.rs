//! `rollway check`: everything that can be known without running anything.

#![expect(clippy::print_stderr, reason = "what is said is for people")]

use rollway::config::Config;
use rollway::job::{self, JobError};

use crate::{CliError, ConfigArgs, runtime};

/// Looks at what a checked configuration names: files, workflows, programs.
pub(crate) fn check(config: &Config, source: &ConfigArgs) -> Result<(), CliError> {
    let troubles = runtime()?.block_on(job::check(config));
    if !troubles.is_empty() {
        return Err(JobError::NotStarted(troubles).into());
    }
    eprintln!("{}: sound", source.config.display());
    Ok(())
}
