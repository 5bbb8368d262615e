//! Experience ids.

use std::fmt;

use rollway_core::BatchId;

/// Id of an experience.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Eid {
    pub batch: IdPart,
    pub task: IdPart,
    pub run: u64,
    /// Turn of the agent in the run.
    pub step: u64,
    /// Makes ids unique; see [`Eid::suffix_of`].
    pub suffix: String,
}

impl Eid {
    /// Formats random bytes as a suffix of six hexadecimal digits.
    pub fn suffix_of(random: [u8; 3]) -> String {
        let [a, b, c] = random;
        format!("{a:02x}{b:02x}{c:02x}")
    }

    /// Returns the full id: `batch/task/run/step/suffix`.
    pub fn uid(&self) -> String {
        self.to_string()
    }

    /// Returns the id of the run: `batch/task/run`.
    pub fn rid(&self) -> String {
        format!("{}/{}/{}", self.batch, self.task, self.run)
    }

    /// Returns the id of the task: `batch/task`.
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

/// Id of a batch or a task. The default is the empty text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_documented_form() {
        let eid =
            Eid { batch: 7.into(), task: "t".into(), run: 2, step: 3, suffix: "00ff0a".into() };
        assert_eq!(eid.uid(), "7/t/2/3/00ff0a");
        assert_eq!(eid.rid(), "7/t/2");
        assert_eq!(eid.tid(), "7/t");
        assert_eq!(Eid::suffix_of([0, 255, 10]), eid.suffix);
        assert_eq!(Eid::default().to_string(), "//0/0/");
    }
}
