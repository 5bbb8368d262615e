//! Recording of a response, before the client receives its end.

use std::sync::Arc;

use rollway_model_api::replay::SavedResponse;
use rollway_model_api::{
    CallError, ErrorKind, ModelCall, ModelResponse, ResponseEnd, ResponseParseError, ResponseParser,
};

use super::agents::AgentCall;
use super::run_sessions::{DeliveryReceipt, PendingCall};
use super::state::GatewayState;
use super::turn_store::TurnStore;
use super::upstream::UpstreamRequest;
use rollway_recording::{RecordError, Turn};

/// Destination of a recording.
#[derive(Debug)]
pub(super) enum RecordTarget {
    Run(PendingCall),
    /// The turn store of serve mode.
    Agent(AgentCall, PendingCall, Arc<dyn TurnStore>),
    /// Not recorded: an auxiliary model, or no run.
    None,
}

impl RecordTarget {
    pub(super) fn is_recorded(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Finishes a complete response and records it. `saved` returns the response for client
    /// retries.
    pub(super) async fn complete(
        self,
        request: &UpstreamRequest,
        parser: Box<dyn ResponseParser>,
        version: Option<u64>,
        saved: impl FnOnce(&ModelResponse) -> SavedResponse,
    ) -> Result<Option<DeliveryReceipt>, CallError> {
        match parser.finish(ResponseEnd::Complete) {
            Ok(response) => {
                request.observed.on_response(&response, version);
                let saved = saved(&response);
                let recorded = self.record(&request.app, &request.call, response, saved).await;
                recorded.map_err(|error| unrecorded(&error))
            }
            Err(_) if !self.is_recorded() => Ok(None),
            Err(error) => Err(self.reject(&request.app, error)),
        }
    }

    /// Fails the recording because a response is invalid, and returns the client's error.
    pub(super) fn reject(self, app: &GatewayState, error: ResponseParseError) -> CallError {
        if !self.is_recorded() {
            let message = format!("invalid response of the server: {error}");
            return CallError::new(ErrorKind::Upstream, message);
        }
        let error = RecordError::Misread(error.0);
        self.fail(app, error.clone());
        unrecorded(&error)
    }

    /// Records a complete or aborted response.
    pub(super) async fn record(
        self,
        app: &Arc<GatewayState>,
        call: &ModelCall,
        mut response: ModelResponse,
        saved: SavedResponse,
    ) -> Result<Option<DeliveryReceipt>, RecordError> {
        if response.choices.iter().any(|choice| choice.finish_reason.as_deref() == Some("abort")) {
            // The server ended it early, and reports that in a full response.
            response.end = ResponseEnd::Aborted;
        }
        app.metrics.answered(&response);
        match self {
            Self::None => Ok(None),
            Self::Run(pending) => {
                let (receipt, counted, result) = pending.answered(response, saved);
                app.metrics.recorded(counted);
                match result {
                    Ok(()) => Ok(Some(receipt)),
                    Err(error) => {
                        app.metrics.values.recording_failures.inc();
                        app.count_unrecorded(&error);
                        // The response is valid, and the run may return experiences of its own.
                        let is_tolerated = matches!(error, RecordError::NoTokens(_));
                        if is_tolerated { Ok(Some(receipt)) } else { Err(error) }
                    }
                }
            }
            Self::Agent(agent, pending, history) => {
                let turns = Turn::of(call, response.clone());
                if let Err(error) = keep_in_history(app, history, turns).await {
                    app.metrics.values.recording_failures.inc();
                    return Err(error);
                }
                // Only for client retries: the turns are stored.
                let (receipt, _, result) = pending.answered(response, saved);
                match result {
                    Ok(()) => app.agents.recorded(&agent),
                    Err(_) => app.agents.remove(&agent),
                }
                Ok(Some(receipt))
            }
        }
    }

    /// Fails the recording of a run. Other targets have nothing to fail.
    pub(super) fn fail(self, app: &GatewayState, error: RecordError) {
        app.metrics.values.recording_failures.inc();
        match self {
            Self::Run(pending) => pending.failed(error),
            // The client gets the error; other calls are not affected.
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
    // A separate task, so that a disconnect does not interrupt it.
    let storing = app.tasks.spawn(async move { history.store_turns(turns).await });
    match storing.await {
        Ok(result) => result?,
        Err(error) => return Err(RecordError::Misread(format!("the turn store failed: {error}"))),
    }
    app.metrics.values.turns.inc_by(count);
    Ok(())
}

pub(super) fn unrecorded(error: &RecordError) -> CallError {
    CallError::new(ErrorKind::Upstream, error.to_string())
}
