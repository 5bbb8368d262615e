//! What experiences are called, and groups of them by parts of their names.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use rollway_core::BatchId;

use super::{Experience, FieldError, FieldProblem};

/// The name of an experience.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Eid {
    pub batch: IdPart,
    /// The task in the batch.
    pub task: IdPart,
    /// The run of the task.
    pub run: u64,
    /// The agent's turn in the run.
    pub step: u64,
    /// What keeps apart names that are otherwise the same; see [`Eid::suffix_of`].
    pub suffix: String,
}

impl Eid {
    /// Makes a suffix of six hexadecimal digits. The caller brings the randomness.
    pub fn suffix_of(random: [u8; 3]) -> String {
        let [a, b, c] = random;
        format!("{a:02x}{b:02x}{c:02x}")
    }

    /// Returns the whole name: `batch/task/run/step/suffix`.
    pub fn uid(&self) -> String {
        self.to_string()
    }

    /// Returns which turn of which task it is: `batch/task/step`.
    pub fn sid(&self) -> String {
        format!("{}/{}/{}", self.batch, self.task, self.step)
    }

    /// Returns which run it comes from: `batch/task/run`.
    pub fn rid(&self) -> String {
        format!("{}/{}/{}", self.batch, self.task, self.run)
    }

    /// Returns which task it comes from: `batch/task`.
    pub fn tid(&self) -> String {
        format!("{}/{}", self.batch, self.task)
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, task, run, step, suffix } = self;
        write!(f, "{batch}/{task}/{run}/{step}/{suffix}")
    }
}

/// A batch or a task: a number or a text. The default is the empty text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IdPart {
    Number(i64),
    Text(String),
}

impl Default for IdPart {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl fmt::Display for IdPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<i64> for IdPart {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for IdPart {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&BatchId> for IdPart {
    fn from(batch: &BatchId) -> Self {
        match batch {
            BatchId::Number(number) => Self::Number(*number),
            BatchId::Text(text) => Self::Text(text.as_ref().to_owned()),
        }
    }
}

/// What the members of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupBy {
    Task,
    Run,
    /// The task and the turn.
    Step,
}

impl FromStr for GroupBy {
    type Err = FieldError;

    fn from_str(name: &str) -> Result<Self, FieldError> {
        match name {
            "task" => Ok(Self::Task),
            "run" => Ok(Self::Run),
            "step" => Ok(Self::Step),
            _ => Err(FieldProblem::UnknownName(name.to_owned()).at("group_by")),
        }
    }
}

/// Groups experiences, or references to them, under their tid, rid or sid.
///
/// Groups come in the order of their first members, and members in the order in which they came.
pub fn group_by<E: Borrow<Experience>>(
    experiences: impl IntoIterator<Item = E>,
    by: GroupBy,
) -> Vec<(String, Vec<E>)> {
    let mut groups: Vec<(String, Vec<E>)> = Vec::new();
    let mut positions: HashMap<String, usize> = HashMap::new();
    for experience in experiences {
        let eid = &experience.borrow().eid;
        let key = match by {
            GroupBy::Task => eid.tid(),
            GroupBy::Run => eid.rid(),
            GroupBy::Step => eid.sid(),
        };
        match positions.get(&key) {
            Some(&position) => groups[position].1.push(experience),
            None => {
                positions.insert(key.clone(), groups.len());
                groups.push((key, vec![experience]));
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_documented_ones() {
        let eid =
            Eid { batch: 7.into(), task: "t".into(), run: 2, step: 3, suffix: "00ff0a".into() };
        assert_eq!(eid.uid(), "7/t/2/3/00ff0a");
        assert_eq!(eid.sid(), "7/t/3");
        assert_eq!(eid.rid(), "7/t/2");
        assert_eq!(eid.tid(), "7/t");
        assert_eq!(Eid::suffix_of([0, 255, 10]), eid.suffix);
        assert_eq!(Eid::default().to_string(), "//0/0/");
    }

    #[test]
    fn an_unknown_group_is_refused() {
        let error = "batch".parse::<GroupBy>().unwrap_err();
        assert_eq!(error.to_string(), "group_by: unknown name `batch`");
    }
}
