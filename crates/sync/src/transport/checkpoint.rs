//! Method `checkpoint`: files in the folder of the job, which trainers write by themselves or by a
//! publish call.

use super::WeightTransport;

#[derive(Debug)]
pub(super) struct CheckpointTransport;

impl WeightTransport for CheckpointTransport {
    fn is_watched(&self) -> bool {
        true
    }
}
