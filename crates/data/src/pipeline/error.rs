//! What can go wrong in the pipeline.

use rollway_experience::PayloadError;

use super::OperatorError;
use crate::buffer::BufferError;

/// Why the pipeline did not take a batch, or did not get ready. Nothing was written to the output,
/// or it cannot be known whether it was; in either case the same call may be made again.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// `prepare` has not been called, or has failed. Nothing was written anywhere.
    #[error("the experience pipeline is not prepared: call `prepare` first")]
    NotPrepared,
    /// `close` has been called. Nothing was written anywhere.
    #[error("the experience pipeline is closed")]
    Closed,
    /// A payload cannot be read. Nothing was written anywhere.
    #[error("payload {position} of {count} cannot be read")]
    Payload {
        /// Which one, counted from 0, empty ones included.
        position: usize,
        count: usize,
        /// What is wrong with it.
        source: PayloadError,
    },
    /// An operator did not get ready.
    #[error("operator `{operator}` does not get ready")]
    Prepare {
        operator: String,
        /// What it said.
        source: OperatorError,
    },
    /// An operator did not do its work.
    #[error("operator `{operator}` failed")]
    Operator {
        operator: String,
        /// What it said.
        source: OperatorError,
    },
    /// An operator panicked.
    #[error("operator `{operator}` panicked: {message}")]
    Panicked {
        operator: String,
        /// What it said.
        message: String,
    },
    /// An operator returned two experiences of one name, of which a buffer would lose one.
    #[error("operator `{operator}` returned {id} twice; derived experiences need ids of their own")]
    DuplicateId {
        operator: String,
        /// The name.
        id: String,
    },
    /// An operator's reasons do not fit to what it returned.
    #[error(
        "operator `{operator}` gave reasons for {said} dropped experiences, but dropped {found}"
    )]
    Miscounted {
        operator: String,
        /// How many it gave reasons for.
        said: usize,
        /// How many are missing.
        found: usize,
    },
    /// An experience, as the operators left it, cannot be written.
    #[error("experience {id} cannot be encoded after the operators")]
    Encode {
        /// The name of the experience.
        id: String,
        /// What is wrong with it.
        source: PayloadError,
    },
    /// The store of inputs failed. Nothing was written to the output.
    #[error("the input of the pipeline was not saved")]
    Input(#[source] BufferError),
    /// The output failed.
    #[error("the output of the pipeline was not written")]
    Output(#[source] BufferError),
}
