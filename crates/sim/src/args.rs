//! Flags of the command.

use std::collections::BTreeMap;

use rollway_sim::WorldKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimRequest {
    pub(crate) stage: WorldKind,
    pub(crate) command: SimCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimCommand {
    Seeds { first: u64, count: u64, jobs: Option<usize>, coverage: bool },
    Seed { seed: u64, trace: bool },
    Mutants { first: u64 },
    Help,
}

pub(crate) const USAGE: &str = "\
usage: rollway-sim [--explorers] --seeds N [--first S] [--jobs J] [--coverage]
       rollway-sim [--explorers] --seed N [--trace]
       rollway-sim [--explorers] --mutants [--first S]

    --explorers  simulate explorers, a trainer and the synchronizer, instead of users, runners and a
                 sink around the core

  --seeds N    run N seeds, from --first on (0)
    --jobs J     threads (default: number of cores)
    --coverage   print how often each event occurred
    --seed N     run one seed again
    --trace      print all inputs and actions
    --mutants    run seeds with planted bugs until the checkers have reported each

exit code: 0 passed, 2 wrong usage, 101 panic, 102 no progress, 103 wrong behaviour
";

/// Parses the flags. An error names the wrong flag and the reason.
pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<SimRequest, String> {
    let mut flags: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(flag) = args.next() {
        let value = match flag.as_str() {
            "--seeds" | "--seed" | "--first" | "--jobs" => {
                let arg = args.next().ok_or_else(|| format!("{flag} needs a number"))?;
                arg.parse().map_err(|_| format!("{flag} needs a number, not: {arg}"))?
            }
            "--trace" | "--coverage" | "--explorers" | "--mutants" | "--help" | "-h" => 1,
            _ => return Err(format!("unknown flag: {flag}")),
        };
        if flags.insert(flag.clone(), value).is_some() {
            return Err(format!("{flag} is given twice"));
        }
    }
    let explorers = flags.contains_key("--explorers");
    let stage = if explorers { WorldKind::Explorers } else { WorldKind::Core };
    Ok(SimRequest { stage, command: command(&flags)? })
}

fn command(flags: &BTreeMap<String, u64>) -> Result<SimCommand, String> {
    let has = |flag: &str| flags.contains_key(flag);
    if has("--help") || has("-h") {
        return Ok(SimCommand::Help);
    }
    let modes: Vec<&str> =
        ["--seeds", "--seed", "--mutants"].into_iter().filter(|mode| has(mode)).collect();
    let [mode] = modes[..] else {
        let problem = if modes.is_empty() {
            "one of --seeds, --seed and --mutants is needed"
        } else {
            "--seeds, --seed and --mutants exclude each other"
        };
        return Err(problem.to_owned());
    };
    let options: [(&str, &[&str]); 4] = [
        ("--trace", &["--seed"]),
        ("--coverage", &["--seeds"]),
        ("--jobs", &["--seeds"]),
        ("--first", &["--seeds", "--mutants"]),
    ];
    for (flag, modes) in options {
        if has(flag) && !modes.contains(&mode) {
            return Err(format!("{flag} has no effect here"));
        }
    }
    let value = |flag: &str| flags.get(flag).copied();
    let first = value("--first").unwrap_or(0);
    if let Some(seed) = value("--seed") {
        return Ok(SimCommand::Seed { seed, trace: has("--trace") });
    }
    let Some(count) = value("--seeds") else { return Ok(SimCommand::Mutants { first }) };
    let jobs = value("--jobs").map(|jobs| usize::try_from(jobs).unwrap_or(usize::MAX).min(1024));
    if jobs == Some(0) {
        return Err("--jobs needs at least one".to_owned());
    }
    Ok(SimCommand::Seeds { first, count, jobs, coverage: has("--coverage") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> Result<SimRequest, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn read(line: &str) -> Result<SimCommand, String> {
        request(line).map(|request| request.command)
    }

    #[test]
    fn flags_have_the_documented_meaning() {
        let many = SimCommand::Seeds { first: 7, count: 10, jobs: Some(2), coverage: false };
        assert_eq!(read("--seeds 10 --first 7 --jobs 2"), Ok(many));
        assert_eq!(read("--seed 3 --trace"), Ok(SimCommand::Seed { seed: 3, trace: true }));
        assert_eq!(read("--mutants"), Ok(SimCommand::Mutants { first: 0 }));
        let stage = |line: &str| request(line).map(|request| request.stage);
        assert_eq!(stage("--seed 3"), Ok(WorldKind::Core));
        assert_eq!(stage("--explorers --seed 3"), Ok(WorldKind::Explorers));
    }

    #[test]
    fn wrong_flags_are_named() {
        let wrong = |line: &str| read(line).unwrap_err();
        assert_eq!(wrong(""), "one of --seeds, --seed and --mutants is needed");
        assert_eq!(wrong("--seeds"), "--seeds needs a number");
        assert_eq!(wrong("--seeds ten"), "--seeds needs a number, not: ten");
        assert_eq!(wrong("--seeds 1 --seeds 2"), "--seeds is given twice");
        assert_eq!(wrong("--seeds 1 --seed 2"), "--seeds, --seed and --mutants exclude each other");
        assert_eq!(wrong("--seeds 1 --trace"), "--trace has no effect here");
        assert_eq!(wrong("--seeds 1 --jobs 0"), "--jobs needs at least one");
        assert_eq!(wrong("--sedes 1"), "unknown flag: --sedes");
    }
}
