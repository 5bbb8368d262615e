//! The flags of the command.

use rollway_sim::WorldKind;

/// What was asked for, and of which worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimRequest {
    pub(crate) stage: WorldKind,
    pub(crate) command: SimCommand,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimCommand {
    /// Run many seeds.
    Seeds { first: u64, count: u64, jobs: Option<usize>, coverage: bool },
    /// Run one seed.
    Seed { seed: u64, trace: bool },
    /// Show that the checkers notice planted bugs.
    Mutants { first: u64 },
    /// Show how the command is used.
    Help,
}

pub(crate) const USAGE: &str = "\
usage: rollway-sim [--explorers] --seeds N [--first S] [--jobs J] [--coverage]
       rollway-sim [--explorers] --seed N [--trace]
       rollway-sim [--explorers] --mutants [--first S]

  --explorers  worlds of explorers, a trainer and the board at which they meet, and not of users,
               runners and a sink around the core

  --seeds N    run N seeds, from --first on (0)
  --jobs J     on J threads (as many as there are cores)
  --coverage   and show what came up
  --seed N     run one seed again
  --trace      and show everything that was told and ordered
  --mutants    run seeds with planted bugs until the checkers have noticed each

exit code: 0 passed, 2 wrong usage, 101 a panic, 102 something did not end,
           103 something was wrong
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

/// Reads the flags.
///
/// # Errors
/// Says which flag is wrong, and why.
pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<SimRequest, String> {
    let mut flags = Flags::default();
    let mut words = words;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => number(&word, &mut words, &mut flags.seeds)?,
            "--seed" => number(&word, &mut words, &mut flags.seed)?,
            "--first" => number(&word, &mut words, &mut flags.first)?,
            "--jobs" => number(&word, &mut words, &mut flags.jobs)?,
            "--trace" => flags.trace = true,
            "--coverage" => flags.coverage = true,
            "--explorers" => flags.explorers = true,
            "--mutants" => flags.mutants = true,
            "--help" | "-h" => flags.help = true,
            _ => return Err(format!("unknown flag: {word}")),
        }
    }
    let stage = if flags.explorers { WorldKind::Explorers } else { WorldKind::Core };
    Ok(SimRequest { stage, command: flags.command()? })
}

fn number(
    flag: &str,
    words: &mut impl Iterator<Item = String>,
    to: &mut Option<u64>,
) -> Result<(), String> {
    let word = words.next().ok_or_else(|| format!("{flag} needs a number"))?;
    let number = word.parse().map_err(|_| format!("{flag} needs a number, not: {word}"))?;
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
        let modes = [self.seeds.is_some(), self.seed.is_some(), self.mutants];
        match modes.iter().filter(|mode| **mode).count() {
            0 => return Err("one of --seeds, --seed and --mutants is needed".to_owned()),
            1 => {}
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
                return Err(format!("{flag} means nothing here"));
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

    fn read(line: &str) -> Result<SimCommand, String> {
        parse(line.split_whitespace().map(str::to_owned)).map(|asked| asked.command)
    }

    #[test]
    fn flags_mean_what_the_usage_says() {
        let many = SimCommand::Seeds { first: 7, count: 10, jobs: Some(2), coverage: false };
        assert_eq!(read("--seeds 10 --first 7 --jobs 2"), Ok(many));
        assert_eq!(read("--seed 3 --trace"), Ok(SimCommand::Seed { seed: 3, trace: true }));
        assert_eq!(read("--mutants"), Ok(SimCommand::Mutants { first: 0 }));
        let stage =
            |line: &str| parse(line.split_whitespace().map(str::to_owned)).map(|asked| asked.stage);
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
        assert_eq!(wrong("--seeds 1 --trace"), "--trace means nothing here");
        assert_eq!(wrong("--seeds 1 --jobs 0"), "--jobs needs at least one");
        assert_eq!(wrong("--sedes 1"), "unknown flag: --sedes");
    }
}
