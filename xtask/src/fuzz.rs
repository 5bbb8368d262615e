//! Coverage-guided fuzzing of the targets in `crates/fuzz` with libFuzzer.
//!
//! Instrumentation needs no other toolchain than the stable one: the pass of LLVM is chosen by
//! flags of the compiler. The build has a target directory of its own.

use std::path::Path;

use crate::shell::{CommandFailure, Shell, create_folder};

/// Compiler flags of libFuzzer's coverage: counters at edges, and operands of comparisons.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                        -Cllvm-args=-sanitizer-coverage-pc-table \
                        -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Largest memory of a process, and longest time of one input.
const LIMITS: &str = "-rss_limit_mb=3072 -timeout=25 -print_final_stats=1";

/// Targets of `crates/fuzz`, each with its maximum length of inputs.
const TARGETS: &[(&str, u32)] = &[
    ("worker_protocol", 4096),
    ("reader_protocol", 4096),
    ("experience_payload", 16384),
    ("configuration", 8192),
    ("client_requests", 8192),
    ("server_responses", 8192),
    ("job_files", 16384),
    ("taskset_files", 16384),
];

/// Runs one target or all of them, each for a time. Inputs that reach new code are kept below the
/// target directory; an input that fails is an error.
pub(crate) fn run(shell: &Shell, name: Option<&str>, seconds: u32) -> Result<(), CommandFailure> {
    let chosen: Vec<_> =
        TARGETS.iter().filter(|(known, _)| name.is_none_or(|name| name == *known)).collect();
    if chosen.is_empty() {
        let names = TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(CommandFailure::new("unknown target").hint(format!("known: {names}")));
    }
    let folder = shell.target.join("fuzz");
    let host = host(shell)?;
    shell
        .cargo("build --locked --profile fuzz -p rollway-fuzz --features libfuzzer --bin fuzz")
        // With a target, build scripts and macros are not instrumented.
        .args(["--target", &host])
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTFLAGS", COVERAGE)
        .run()?;
    let program = folder.join(host).join("fuzz/fuzz");
    for (name, max_bytes) in chosen {
        fuzz(shell, &program, &folder, name, &[*max_bytes, seconds])?;
    }
    Ok(())
}

fn fuzz(
    shell: &Shell,
    program: &Path,
    folder: &Path,
    name: &str,
    [max_bytes, seconds]: &[u32; 2],
) -> Result<(), CommandFailure> {
    let [corpus, seeds, failures] =
        ["corpus", "seeds", "failures"].map(|part| folder.join(part).join(name));
    for folder in [&corpus, &seeds, &failures] {
        create_folder(folder)?;
    }
    let regressions = shell.root.join("crates/fuzz/regressions").join(name);
    create_folder(&regressions)?;
    let program = || shell.program(program).env("ROLLWAY_FUZZ_TARGET", name);
    program().env("ROLLWAY_FUZZ_SEEDS", &seeds).run()?;
    let fuzzing = program()
        .args([&corpus, &seeds, &regressions])
        .split_args(LIMITS)
        .args([format!("-max_len={max_bytes}"), format!("-max_total_time={seconds}")])
        .args([format!("-artifact_prefix={}/", failures.display())]);
    fuzzing.run().map_err(|failure| {
        failure.hint(format!(
            "the input is in {}: fix the code and keep the input in crates/fuzz/regressions/{name}",
            failures.display()
        ))
    })
}

/// Returns the platform of the compiler.
fn host(shell: &Shell) -> Result<String, CommandFailure> {
    let version = shell.cargo("--version --verbose").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let missing = || CommandFailure::new("`cargo --version --verbose` names no host");
    host.map(str::to_owned).ok_or_else(missing)
}
