//! Which version of the model produced which token.

use super::FieldProblem;

/// The version of the model behind every token of a response, as runs of tokens with the same one.
///
/// Weights may be exchanged in the middle of a response: then it has several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelVersions {
    // Invariant: no run is empty, no version is above `i64::MAX`, and neighbours differ.
    runs: Vec<VersionRun>,
}

/// Tokens one after the other with the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRun {
    /// The version; absent if no model of ours produced the tokens.
    pub version: Option<u64>,
    /// How many tokens; at least 1.
    pub tokens: u32,
}

impl ModelVersions {
    /// Makes the list of runs of tokens. Neighbours with the same version become one.
    pub fn from_runs(runs: impl IntoIterator<Item = VersionRun>) -> Result<Self, FieldProblem> {
        let mut versions = Self::default();
        for run in runs {
            versions.push(run)?;
        }
        Ok(versions)
    }

    /// Appends tokens.
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

    /// Returns the runs in the order of the tokens.
    pub fn runs(&self) -> &[VersionRun] {
        &self.runs
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.tokens)).sum()
    }

    /// Returns the version of every token.
    pub fn iter(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.runs.iter().flat_map(|run| std::iter::repeat_n(run.version, run.tokens as usize))
    }

    /// Returns the lowest version, which is the one that counts for staleness.
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
        let versions = ModelVersions::from_runs([
            run(Some(4), 2),
            run(Some(4), 1),
            run(None, 1),
            run(Some(3), 1),
        ])
        .unwrap();
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
