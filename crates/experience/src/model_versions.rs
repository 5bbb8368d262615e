//! Model versions of the tokens of a response.

use super::FieldProblem;

/// Model version of every token of a response, run-length encoded.
///
/// A weight update during generation gives a response several versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelVersions {
    // Invariant: no run is empty, no version is above `i64::MAX`, and neighbours differ.
    runs: Vec<VersionRun>,
}

/// Consecutive tokens with the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRun {
    /// `None`: not produced by the trained model.
    pub version: Option<u64>,
    /// At least 1.
    pub tokens: u32,
}

impl ModelVersions {
    /// Joins neighbours with the same version.
    pub fn from_runs(runs: impl IntoIterator<Item = VersionRun>) -> Result<Self, FieldProblem> {
        let mut versions = Self::default();
        for run in runs {
            versions.push(run)?;
        }
        Ok(versions)
    }

    pub fn push(&mut self, run: VersionRun) -> Result<(), FieldProblem> {
        if run.tokens == 0 {
            return Err(FieldProblem::NotPositive);
        }
        if let Some(version) = run.version
            && i64::try_from(version).is_err()
        {
            return Err(FieldProblem::TooLarge(version));
        }
        match self.runs.last_mut() {
            Some(last) if last.version == run.version => {
                let tokens = u64::from(last.tokens) + u64::from(run.tokens);
                last.tokens = u32::try_from(tokens).map_err(|_| FieldProblem::TooLarge(tokens))?;
            }
            _ => self.runs.push(run),
        }
        Ok(())
    }

    pub fn runs(&self) -> &[VersionRun] {
        &self.runs
    }

    pub fn tokens(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.tokens)).sum()
    }

    /// Iterates over the versions token by token.
    pub fn iter(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.runs.iter().flat_map(|run| std::iter::repeat_n(run.version, run.tokens as usize))
    }

    /// Returns the lowest version, which decides staleness.
    pub fn oldest(&self) -> Option<u64> {
        self.runs.iter().filter_map(|run| run.version).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_and_counted() {
        let run = |version, tokens| VersionRun { version, tokens };
        let runs = [run(Some(4), 2), run(Some(4), 1), run(None, 1), run(Some(3), 1)];
        let versions = ModelVersions::from_runs(runs).unwrap();
        assert_eq!(versions.runs(), [run(Some(4), 3), run(None, 1), run(Some(3), 1)]);
        assert_eq!(versions.tokens(), 5);
        assert_eq!(versions.oldest(), Some(3));
        let each: Vec<Option<u64>> = versions.iter().collect();
        assert_eq!(each, [Some(4), Some(4), Some(4), None, Some(3)]);
        assert_eq!(ModelVersions::from_runs([run(None, 0)]), Err(FieldProblem::NotPositive));
        let huge = ModelVersions::from_runs([run(Some(u64::MAX), 1)]);
        assert_eq!(huge, Err(FieldProblem::TooLarge(u64::MAX)));
    }
}
