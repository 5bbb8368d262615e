//! The end of an answer: what was heard is recorded before the client learns that it was all.

use std::sync::Arc;

use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{
    CallError, ErrorKind, ModelCall, ModelResponse, ResponseEnd, ResponseParseError,
};

use super::agents::AgentCall;
use super::run_sessions::{DeliveryReceipt, PendingCall};
use super::state::GatewayState;
use super::turn_store::TurnStore;
use crate::recording::{RecordError, Turn};

/// Where an answer is kept.
#[derive(Debug)]
pub(super) enum RecordTarget {
    Run(PendingCall),
    /// In the history of serve mode.
    Agent(AgentCall, PendingCall, Arc<dyn TurnStore>),
    /// Nowhere: it is a judge's, or nobody trains on it.
    None,
}

impl RecordTarget {
    /// Whether anything is kept.
    pub(super) fn is_kept(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether the answer itself is kept, for a client that asks again.
    pub(super) fn keeps_answers(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Agent(..))
    }

    /// Keeps an answer, whole or aborted.
    pub(super) async fn record(
        self,
        app: &Arc<GatewayState>,
        call: &ModelCall,
        mut answer: ModelResponse,
        kept: SavedResponse,
    ) -> Result<Option<DeliveryReceipt>, RecordError> {
        if answer.choices.iter().any(|choice| choice.finish_reason.as_deref() == Some("abort")) {
            // The server has ended it early, and says so in a whole answer.
            answer.end = ResponseEnd::Aborted;
        }
        app.metrics.answered(&answer);
        match self {
            Self::None => Ok(None),
            Self::Run(pending) => {
                let (receipt, counted, result) = pending.answered(answer, kept);
                app.metrics.recorded(counted);
                match result {
                    Ok(()) => Ok(Some(receipt)),
                    Err(error) => {
                        app.metrics.recording_failed();
                        // The answer itself is good, and the run may have experiences of its own.
                        let is_bearable = matches!(error, RecordError::NoTokens(_));
                        if is_bearable { Ok(Some(receipt)) } else { Err(error) }
                    }
                }
            }
            Self::Agent(guest, pending, history) => {
                let turns = Turn::of(call, answer.clone());
                if let Err(error) = keep_in_history(app, history, turns).await {
                    app.metrics.recording_failed();
                    return Err(error);
                }
                // What follows is for a client that asks again; what counts is kept.
                let (receipt, _, result) = pending.answered(answer, kept);
                match result {
                    Ok(()) => app.guests.recorded(&guest),
                    Err(_) => app.guests.forget(&guest),
                }
                Ok(Some(receipt))
            }
        }
    }

    /// What was heard cannot be recorded.
    pub(super) fn fail(self, app: &GatewayState, error: RecordError) {
        app.metrics.recording_failed();
        match self {
            Self::Run(pending) => pending.failed(error),
            // Its client is told, and no other call suffers for it.
            Self::Agent(..) | Self::None => {}
        }
    }
}

async fn keep_in_history(
    app: &Arc<GatewayState>,
    history: Arc<dyn TurnStore>,
    turns: Result<Vec<Turn>, RecordError>,
) -> Result<(), RecordError> {
    let turns = turns?;
    let count = u64::try_from(turns.len()).unwrap_or(u64::MAX);
    // A task of its own: a client that leaves now must not leave half of it behind.
    let keeping = app.tasks.spawn(async move { history.keep(turns).await });
    match keeping.await {
        Ok(result) => result?,
        Err(error) => return Err(RecordError::Misread(format!("the history failed: {error}"))),
    }
    app.metrics.kept(count);
    Ok(())
}

/// What the client is told when what a server says makes no sense; whether it was to be recorded.
pub(super) fn invalid_response(misread: &ResponseParseError, is_recorded: bool) -> CallError {
    if is_recorded {
        return unrecorded(&RecordError::Misread(misread.0.clone()));
    }
    let message = format!("the server's answer could not be understood: {misread}");
    CallError::new(ErrorKind::Upstream, message)
}

/// What the client is told when its answer was not recorded.
pub(super) fn unrecorded(error: &RecordError) -> CallError {
    CallError::new(ErrorKind::Upstream, error.to_string())
}
