//! `rollway migrate`: the keys of a Trinity-RFT configuration and their meaning here.

use std::path::PathBuf;

use clap::Args;
use rollway::config::Config;
use rollway::job::OperatorRegistry;

use crate::CliError;

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// Configuration file of Trinity-RFT (YAML)
    config: PathBuf,
}

/// Prints the report; an error if the configuration cannot be run as it is.
pub(crate) fn migrate(args: &MigrateArgs) -> Result<(), CliError> {
    let operators = OperatorRegistry::built_in();
    let report = Config::migration_report(&args.config, operators.names())?;
    outln!("{}", report.to_string().trim_end());
    if report.is_ready() {
        return Ok(());
    }
    let file = args.config.display();
    Err(CliError::Input(format!("{file} must be changed before it can be run, see above")))
}
