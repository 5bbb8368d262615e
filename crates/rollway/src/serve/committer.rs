//! Delivery of committed steps to the pipeline.

use std::sync::Arc;
use std::time::Duration;

use rollway_engine::PipelineSink;
use rollway_gateway::serve::{CommitDelivery, CommitStep, Committer};

/// Delivers committed steps to the pipeline and the buffer.
#[derive(Debug)]
pub(super) struct PipelineCommitter {
    sink: Arc<PipelineSink>,
    timeout: Duration,
}

impl PipelineCommitter {
    pub(super) fn new(sink: Arc<PipelineSink>, timeout: Duration) -> Self {
        Self { sink, timeout }
    }
}

impl Committer for PipelineCommitter {
    fn deliver(&self, step: CommitStep) -> CommitDelivery<'_> {
        Box::pin(async move {
            let CommitStep { number, key, payloads } = step;
            let stored = self.sink.step(number, key, payloads);
            let stored = tokio::time::timeout(self.timeout, stored).await;
            stored.unwrap_or_else(|_| {
                let seconds = self.timeout.as_secs_f64();
                Err(format!(
                    "the pipeline took longer than `explorer.delivery_timeout`: {seconds} s"
                ))
            })
        })
    }
}
