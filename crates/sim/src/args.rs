//! Flags of the command.

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

#[derive(Default)]
struct Flags {
    seeds: Option<u64>,
    seed: Option<u64>,
    first: Option<u64>,
    jobs: Option<u64>,
    trace: bool,
    coverage: bool,
    mutants: bool,
    explorers: bool,
    help: bool,
}

/// Parses the flags. An error names the wrong flag and the reason.
pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<SimRequest, String> {
    let mut flags = Flags::default();
    while let Some(flag) = args.next() {
        match flag.as_str() {
            "--seeds" => number(&flag, &mut args, &mut flags.seeds)?,
            "--seed" => number(&flag, &mut args, &mut flags.seed)?,
            "--first" => number(&flag, &mut args, &mut flags.first)?,
            "--jobs" => number(&flag, &mut args, &mut flags.jobs)?,
            "--trace" => flags.trace = true,
            "--coverage" => flags.coverage = true,
            "--explorers" => flags.explorers = true,
            "--mutants" => flags.mutants = true,
            "--help" | "-h" => flags.help = true,
            _ => return Err(format!("unknown flag: {flag}")),
        }
    }
    let stage = if flags.explorers { WorldKind::Explorers } else { WorldKind::Core };
    Ok(SimRequest { stage, command: flags.command()? })
}

fn number(
    flag: &str,
    args: &mut impl Iterator<Item = String>,
    to: &mut Option<u64>,
) -> Result<(), String> {
    let arg = args.next().ok_or_else(|| format!("{flag} needs a number"))?;
    let number = arg.parse().map_err(|_| format!("{flag} needs a number, not: {arg}"))?;
    if to.replace(number).is_some() {
        return Err(format!("{flag} is given twice"));
    }
    Ok(())
}

impl Flags {
    fn command(self) -> Result<SimCommand, String> {
        if self.help {
            return Ok(SimCommand::Help);
        }
        match (self.seeds.is_some(), self.seed.is_some(), self.mutants) {
            (false, false, false) => {
                return Err("one of --seeds, --seed and --mutants is needed".to_owned());
            }
            (true, false, false) | (false, true, false) | (false, false, true) => {}
            _ => return Err("--seeds, --seed and --mutants exclude each other".to_owned()),
        }
        let many = self.seeds.is_some();
        let fits = [
            ("--trace", self.trace, self.seed.is_some()),
            ("--coverage", self.coverage, many),
            ("--jobs", self.jobs.is_some(), many),
            ("--first", self.first.is_some(), many || self.mutants),
        ];
        for (flag, given, fits) in fits {
            if given && !fits {
                return Err(format!("{flag} has no effect here"));
            }
        }
        let first = self.first.unwrap_or(0);
        if let Some(seed) = self.seed {
            return Ok(SimCommand::Seed { seed, trace: self.trace });
        }
        let Some(count) = self.seeds else { return Ok(SimCommand::Mutants { first }) };
        let jobs = match self.jobs {
            Some(0) => return Err("--jobs needs at least one".to_owned()),
            Some(jobs) => Some(usize::try_from(jobs).unwrap_or(usize::MAX).min(1024)),
            None => None,
        };
        Ok(SimCommand::Seeds { first, count, jobs, coverage: self.coverage })
    }
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
