//! The way to the synchronizer: in this process, or over HTTP to another.

use std::sync::Arc;
use std::time::Duration;

use rollway_core::rendezvous::{Beat, Left, Role};

use super::error::{Said, Trouble};
use super::host::Host;
use super::message::{Asked, NewWeights, TrainerState, View, Waited, Want};
use super::remote::Remote;

/// The way to the synchronizer.
#[derive(Clone, Debug)]
pub(super) enum Link {
    Here(Arc<Host>),
    There(Arc<Remote>),
}

impl Link {
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Here(host) => host.url(),
            Self::There(remote) => remote.url(),
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Here(this), Self::Here(that)) => Arc::ptr_eq(this, that),
            (Self::There(this), Self::There(that)) => Arc::ptr_eq(this, that),
            _ => false,
        }
    }

    /// Returns the number of a seat, and how long it is believed to be taken.
    pub(super) async fn enter(&self, role: Role, name: &str) -> Said<(u64, Duration)> {
        match self {
            Self::Here(host) => host.enter(role, name).map_err(Trouble::Refused),
            Self::There(remote) => remote.enter(role, name).await,
        }
    }

    pub(super) async fn beat(&self, seat: u64) -> Said<Beat> {
        match self {
            Self::Here(host) => Ok(host.hub().beat(seat)),
            Self::There(remote) => remote.beat(seat).await,
        }
    }

    pub(super) async fn leave(&self, seat: u64, how: Left) -> Said<()> {
        match self {
            Self::Here(host) => {
                host.leave(seat, &how).await;
                Ok(())
            }
            Self::There(remote) => remote.leave(seat, how).await,
        }
    }

    pub(super) async fn trainer(&self, seat: u64, state: TrainerState) -> Said<bool> {
        match self {
            Self::Here(host) => Ok(host.trainer(seat, state).await),
            Self::There(remote) => remote.trainer(seat, state).await,
        }
    }

    /// Says how many experiences an explorer has submitted; returns how many the others have.
    pub(super) async fn submitted(&self, explorer: &str, experiences: u64) -> Said<u64> {
        match self {
            Self::Here(host) => Ok(host.hub().submitted(explorer, experiences)),
            Self::There(remote) => remote.submitted(explorer, experiences).await,
        }
    }

    /// Waits; none if it is to be asked again.
    pub(super) async fn wait(&self, want: Want, waited: Duration) -> Said<Option<Waited>> {
        match self {
            Self::Here(host) => host.hub().wait(want, waited).await.map(Some).ok_or_else(goes),
            Self::There(remote) => remote.wait(want, waited).await,
        }
    }

    pub(super) async fn asked(&self, since: Option<Asked>, timeout: Duration) -> Said<Asked> {
        match self {
            Self::Here(host) => host.hub().asked(since, timeout).await.ok_or_else(goes),
            Self::There(remote) => remote.asked(since, timeout).await,
        }
    }

    pub(super) async fn explorers_left(&self, timeout: Duration) -> Said<bool> {
        match self {
            Self::Here(host) => host.hub().explorers_left(timeout).await.ok_or_else(goes),
            Self::There(remote) => remote.explorers_left(timeout).await,
        }
    }

    pub(super) async fn publish(&self, version: u64, weights: NewWeights) -> Said<()> {
        match self {
            Self::Here(host) => host.publish(version, weights).await.map_err(Trouble::Refused),
            Self::There(remote) => remote.publish(version, weights).await,
        }
    }

    pub(super) async fn view(&self) -> Said<View> {
        match self {
            Self::Here(host) => Ok(host.hub().view()),
            Self::There(remote) => remote.view().await,
        }
    }
}

fn goes() -> Trouble {
    Trouble::Gone("the synchronizer of this process ends".to_owned())
}
