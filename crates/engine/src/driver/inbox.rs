//! The driver's inbox, as runners see it.

use std::pin::Pin;

use tokio::sync::mpsc::WeakSender;

use super::DriverMessage;
use crate::workers::{RunnerInbox, RunnerMessage};

/// Weak, so that the driver ends when the last handle is dropped.
#[derive(Debug)]
pub(super) struct WeakInbox(pub(super) WeakSender<DriverMessage>);

impl RunnerInbox for WeakInbox {
    fn send(&self, message: RunnerMessage) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            if let Some(inbox) = self.0.upgrade() {
                let _ = inbox.send(DriverMessage::Runner(message)).await;
            }
        })
    }

    fn blocking_send(&self, message: RunnerMessage) {
        if let Some(inbox) = self.0.upgrade() {
            let _ = inbox.blocking_send(DriverMessage::Runner(message));
        }
    }
}
