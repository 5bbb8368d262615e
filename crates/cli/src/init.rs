//! `rollway init`: writes the files of a first job into a new folder.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args as Arguments, ValueEnum};

use crate::CliError;

// A doc comment here would replace the description of the command in its help.
#[derive(Debug, Arguments)]
pub(crate) struct InitArgs {
    /// Folder to create; its last part becomes the name of the job
    #[arg(value_name = "NAME", default_value = "first-job")]
    folder: PathBuf,
    /// Kind of job
    #[arg(long, value_enum, default_value_t)]
    template: JobTemplate,
}

/// Kind of job that is written.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum JobTemplate {
    /// A Python workflow and reward; a second job file with your server and your trainer
    #[default]
    Workflow,
    /// Built-in workflow and reward; needs no Python
    Arithmetic,
}

/// Placeholder of the name of the job.
const JOB: &str = "@JOB@";

/// Names and contents of files.
type Files = &'static [(&'static str, &'static str)];

const WORKFLOW: Files = &[
    ("job.yaml", include_str!("../templates/workflow/job.yaml")),
    ("flows.py", include_str!("../templates/workflow/flows.py")),
    ("server.yaml", include_str!("../templates/workflow/server.yaml")),
    ("train.py", include_str!("../templates/workflow/train.py")),
];

const ARITHMETIC: Files = &[("job.yaml", include_str!("../templates/arithmetic/job.yaml"))];

/// Numbers of rows to train on and to evaluate.
const ROWS: (usize, usize) = (2000, 200);

/// Writes the files of a template and says what to do next.
pub(crate) fn init(args: &InitArgs) -> Result<(), CliError> {
    let folder = &args.folder;
    let shown = folder.display();
    let name = job_name(folder)?;
    if fs::symlink_metadata(folder).is_ok() {
        return Err(CliError::Input(format!(
            "{shown} exists already; nothing was written. Give another name: `rollway init NAME`"
        )));
    }
    let files = match args.template {
        JobTemplate::Workflow => WORKFLOW,
        JobTemplate::Arithmetic => ARITHMETIC,
    };
    let (train, held_out) = rows();
    let contents = files.iter().map(|(file, text)| (*file, text.replace(JOB, &name)));
    let data = [("train.jsonl", train), ("held_out.jsonl", held_out)];
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        for (file, content) in contents.chain(data) {
            fs::write(folder.join(file), content)?;
        }
        Ok(())
    };
    write().map_err(|error| {
        CliError::Input(format!("cannot write to {shown}: {error}; choose a writable folder"))
    })?;
    outln!("{}", next_steps(folder, args.template));
    Ok(())
}

/// Returns the name of the job: the last part of the folder.
fn job_name(folder: &Path) -> Result<String, CliError> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if name.chars().all(is_plain) && name.starts_with(|it: char| it.is_ascii_alphabetic()) {
        return Ok(name.to_owned());
    }
    Err(CliError::Input(format!(
        "`{}` cannot be the name of a job; use letters, digits, `.`, `_` and `-`, a letter first, \
         such as `rollway init first-job`",
        folder.display()
    )))
}

/// Returns the rows to train on and to evaluate: different sums, in a fixed mixed order.
fn rows() -> (String, String) {
    // 7919 and 10,000 have no common divisor: every pair of numbers comes once.
    let mut rows = (0..10_000_usize).map(|index| {
        let pair = index * 7919 % 10_000;
        let (a, b) = (pair / 100, pair % 100);
        (a, b, a + b)
    });
    let mut take = |count: usize| {
        rows.by_ref().take(count).fold(String::new(), |mut text, (a, b, sum)| {
            let _ = writeln!(text, r#"{{"question": "{a:02}+{b:02}=", "answer": "{sum:03}"}}"#);
            text
        })
    };
    (take(ROWS.0), take(ROWS.1))
}

/// Returns the message after the files were written.
fn next_steps(folder: &Path, template: JobTemplate) -> String {
    let folder = folder.display();
    let common = "  rollway check job.yaml        # validates everything, runs nothing
  rollway debug job.yaml        # one task, with every message, token and reward
  rollway run job.yaml          # trains the embedded model; accuracy on held_out rises";
    match template {
        JobTemplate::Arithmetic => format!(
            "\
{folder}: job.yaml, train.jsonl, held_out.jsonl

  cd {folder}
{common}"
        ),
        JobTemplate::Workflow => format!(
            "\
{folder}: job.yaml, flows.py (workflow, reward), train.jsonl, held_out.jsonl
{folder}: server.yaml and train.py, the same with your inference server and your trainer

  cd {folder}
{common}

With your server, edit the lines of server.yaml and train.py that are marked EDIT. Without one:

  rollway mock-server vllm      # in another terminal
  rollway run server.yaml"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_to_evaluate_are_not_trained_on() {
        let (train, held_out) = rows();
        let all: BTreeSet<&str> = train.lines().chain(held_out.lines()).collect();
        assert_eq!(all.len(), ROWS.0 + ROWS.1);
        assert!(all.contains(r#"{"question": "79+19=", "answer": "098"}"#));
    }

    #[test]
    fn names_are_those_of_folders_and_jobs() {
        assert_eq!(job_name(Path::new("a/first.job-2")).unwrap(), "first.job-2");
        for bad in ["", ".", "..", "/", "a b", "2nd", "x\"y"] {
            assert!(job_name(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
