//! Owner of a buffer: the job whose experiences it holds.

use super::BufferError;

/// Job that owns a buffer. The first owner that opens an unowned buffer is recorded in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferOwner {
    /// Unique id of the job.
    pub id: String,
    /// Name of the job in messages.
    pub name: String,
}

impl BufferOwner {
    /// Refuses a buffer with another recorded owner.
    pub(super) fn check(&self, storage: &str, found: &Self) -> Result<(), BufferError> {
        if self.id == found.id {
            return Ok(());
        }
        Err(BufferError::unsupported(
            storage,
            format!(
                "it holds the experiences of the job {}, and this is the job {}; choose another \
                 `name` or `path` in `buffer.trainer_input.experience_buffer`, or set `shared: \
                 true` there in both jobs to let them use each other's experiences",
                found.name, self.name
            ),
        ))
    }
}
