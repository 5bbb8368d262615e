//! Ways into the driver besides requests: reports of runners, and inputs from destructors.

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use rollway_core::{DeliveryOutcome, Input, LeaseId};
use tokio::sync::Notify;
use tokio::sync::mpsc::WeakSender;

use super::DriverMessage;
use crate::workers::{RunnerInbox, RunnerMessage};

/// Weak, so that the driver ends when the last handle is dropped.
#[derive(Debug)]
pub(super) struct WeakInbox(pub(super) WeakSender<DriverMessage>);

impl RunnerInbox for WeakInbox {
    fn send(&self, message: RunnerMessage) -> BoxFuture<'_, ()> {
        async move {
            if let Some(inbox) = self.0.upgrade() {
                let _ = inbox.send(DriverMessage::Runner(message)).await;
            }
        }
        .boxed()
    }

    fn blocking_send(&self, message: RunnerMessage) {
        if let Some(inbox) = self.0.upgrade() {
            let _ = inbox.blocking_send(DriverMessage::Runner(message));
        }
    }
}

/// Inputs from destructors, which cannot wait. Bounded by the limits of requests and leases: there
/// is at most one entry for each.
#[derive(Debug, Default)]
pub(crate) struct ReturnQueue {
    inputs: Mutex<Vec<Input>>,
    notify: Notify,
}

impl ReturnQueue {
    pub(crate) fn delivered(&self, lease: LeaseId, delivery: DeliveryOutcome) {
        self.push(Input::DeliveryDone { lease, delivery });
    }

    pub(crate) fn push(&self, input: Input) {
        self.inputs.lock().push(input);
        self.notify.notify_one();
    }

    pub(super) async fn wait(&self) {
        self.notify.notified().await;
    }

    pub(super) fn take(&self) -> Vec<Input> {
        std::mem::take(&mut self.inputs.lock())
    }
}
