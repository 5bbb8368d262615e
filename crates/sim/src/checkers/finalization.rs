//! Every accepted batch is finalized or aborted, whatever its runs have returned and however often
//! the sink has refused it.

use std::collections::BTreeSet;

use rollway_core::{Action, BatchKey, Response};

use super::{CheckContext, CheckVerdict, Checker, require};
use crate::reference_model::ReferenceModel;

#[derive(Debug, Default)]
pub(super) struct FinalizationChecker {
    /// Batches whose acceptance was reported.
    accepted: BTreeSet<BatchKey>,
}

impl FinalizationChecker {
    fn check(&self, model: &ReferenceModel) -> CheckVerdict {
        let open = model.active.iter().find(|(_, key)| self.accepted.contains(*key));
        require!(open.is_none(), "accepted, but never finalized: {open:?}");
        Ok(())
    }
}

impl Checker for FinalizationChecker {
    fn released(&mut self, _ctx: &CheckContext<'_>, action: &Action) -> CheckVerdict {
        if let Action::Respond { answer: Response::Submitted { batch }, .. } = action {
            self.accepted.insert(*batch);
        }
        Ok(())
    }

    fn restored(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        let lost = self.accepted.iter().find(|key| !ctx.model.batches.contains_key(key));
        require!(lost.is_none(), "accepted, but unknown after a restart: {lost:?}");
        Ok(())
    }

    fn ended(&mut self, ctx: &CheckContext<'_>) -> CheckVerdict {
        self.check(ctx.model)
    }

    fn stuck(&self, model: &ReferenceModel) -> CheckVerdict {
        self.check(model)
    }
}
