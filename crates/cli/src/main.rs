//! The program `rollway`.

use std::process::ExitCode;

use rollway::job::OperatorRegistry;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    ExitCode::from(rollway_cli::run(&arguments, &|_| Ok(OperatorRegistry::built_in())))
}
