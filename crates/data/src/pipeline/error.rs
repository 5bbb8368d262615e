//! Errors of the pipeline.

use rollway_experience::PayloadError;

use super::OperatorError;
use crate::buffer::BufferError;

/// Error of the pipeline. Nothing was written to the output, or the outcome is unknown; the same
/// call may be repeated either way.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// `prepare` was not called or failed.
    #[error("the experience pipeline is not prepared: call `prepare` first")]
    NotPrepared,
    #[error("the experience pipeline is closed")]
    Closed,
    #[error("operator `{operator}` cannot be prepared")]
    Prepare { operator: String, source: OperatorError },
    #[error("operator `{operator}` failed")]
    Operator { operator: String, source: OperatorError },
    #[error("operator `{operator}` panicked: {message}")]
    Panicked { operator: String, message: String },
    #[error("operator `{operator}` returned {id} twice; derived experiences need ids of their own")]
    DuplicateId { operator: String, id: String },
    #[error(
        "operator `{operator}` reported reasons for {explained} dropped experiences, \
         but dropped {found}"
    )]
    Miscounted { operator: String, explained: usize, found: usize },
    #[error(
        "operator `{operator}` set the reward of {id} to {reward}: a reward must be finite, and a \
         missing one `None`"
    )]
    InvalidReward { operator: String, id: String, reward: f64 },
    #[error("experience {id} cannot be encoded after the operators")]
    Encode { id: String, source: PayloadError },
    /// Saving the input failed; nothing was written to the output.
    #[error("the input of the pipeline was not saved")]
    Input(#[source] BufferError),
    #[error("the output of the pipeline was not written")]
    Output(#[source] BufferError),
}

impl PipelineError {
    /// Tells whether the content of the call, or an operator, is the cause. Otherwise the storage
    /// or the state of the pipeline is.
    pub const fn is_content(&self) -> bool {
        match self {
            Self::NotPrepared | Self::Closed | Self::Prepare { .. } => false,
            Self::Operator { .. }
            | Self::Panicked { .. }
            | Self::DuplicateId { .. }
            | Self::Miscounted { .. }
            | Self::InvalidReward { .. }
            | Self::Encode { .. } => true,
            Self::Input(error) | Self::Output(error) => {
                matches!(error, BufferError::Payload(_) | BufferError::Content { .. })
            }
        }
    }
}
