//! `rollway check`: preflight checks without starting the job. Modules of workflows are imported.

use std::sync::Arc;

use rollway::config::Config;
use rollway::job::{self, JobError, OperatorRegistry};

use crate::{CliError, ConfigArgs, runtime};

/// Checks that the files, workflows and programs of a configuration exist.
pub(crate) fn check(
    config: &Config,
    source: &ConfigArgs,
    operators: OperatorRegistry,
) -> Result<(), CliError> {
    let errors = runtime()?.block_on(job::check(config, &Arc::new(operators)));
    if !errors.is_empty() {
        return Err(JobError::NotStarted(errors).into());
    }
    errln!("{}: valid", source.config.display());
    Ok(())
}
