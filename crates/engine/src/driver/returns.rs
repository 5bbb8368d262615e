//! Inputs of the driver that come from destructors.

use std::sync::{Mutex, PoisonError};

use rollway_core::{DeliveryOutcome, Input, LeaseId};
use tokio::sync::Notify;

/// What comes back to the driver from places that cannot wait: destructors. There is one entry at
/// most for every request and every lease, and these have limits of their own.
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
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).push(input);
        self.notify.notify_one();
    }

    pub(crate) async fn wait(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn take(&self) -> Vec<Input> {
        std::mem::take(&mut *self.inputs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
