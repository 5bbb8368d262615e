//! Carries out updates, server by server, as [`super::rolling_plan`] says.

use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::control;
use super::rolling_plan::{RollingPlan, RollingStep};
use super::routing::{Health, ServerDuty};
use super::server_update::replace;
use super::weight_update::{
    ServerUpdateOutcome, ServerUpdateReport, WeightSource, WeightUpdate, WeightUpdateReport,
};
use super::{ModelsInner, ServerHandle, ServerId, ServerState};

/// Brings the servers of the trained model to a version. Updates come one after the other; one that
/// finds a newer one waiting behind it is dropped.
pub(super) async fn update(inner: Arc<ModelsInner>, update: WeightUpdate) -> WeightUpdateReport {
    let version = update.version;
    inner.with(|table| table.wanted.push(version));
    let _turn = inner.updating.lock().await;
    let superseded_by = inner.with(|table| {
        let own = table.wanted.iter().position(|wanted| *wanted == version);
        own.map(|own| table.wanted.swap_remove(own));
        table.wanted.iter().max().copied().filter(|newest| *newest > version)
    });
    if superseded_by.is_some() {
        return WeightUpdateReport { version, superseded_by, servers: Vec::new() };
    }
    let (mut servers, roll) = plan(&inner, &update);
    let skipped: Vec<ServerId> = servers.iter().map(|server| server.id).collect();
    if let Some(roll) = roll {
        servers.extend(carry_out(&inner, &update, roll).await);
    }
    servers.sort_by_key(|server| server.id);
    // What was sent over a group cannot be had again.
    let can_be_had = matches!(update.weights, WeightSource::Path(_));
    if servers.iter().any(|server| server.outcome == ServerUpdateOutcome::Updated) {
        inner.with(|table| table.latest = can_be_had.then_some(update));
    }
    // Some may have come back too late for the plan.
    for id in skipped {
        if let Some(handle) = inner.with(|table| table.handles.get(&id).cloned()) {
            catch_up(&inner, &handle);
        }
    }
    WeightUpdateReport { version, superseded_by: None, servers }
}

/// Says what becomes of servers that need not or cannot be updated, and plans the rest.
fn plan(
    inner: &ModelsInner,
    update: &WeightUpdate,
) -> (Vec<ServerUpdateReport>, Option<RollingPlan>) {
    inner.with(|table| {
        let Some(model) = table.board.trained() else { return (Vec::new(), None) };
        let (mut reports, mut wanted) = (Vec::new(), Vec::new());
        for (id, seat) in table.board.seats(model) {
            let Some(handle) = table.handles.get(&id) else { continue };
            let outcome = if seat.duty == ServerDuty::Open && seat.version == Some(update.version) {
                Some(ServerUpdateOutcome::AlreadyCurrent)
            } else if let Some(why) = control::cannot_update(handle.server.spec.engine) {
                Some(ServerUpdateOutcome::Skipped(why.to_owned()))
            } else if seat.health != Health::Healthy || seat.duty == ServerDuty::Leaving {
                Some(ServerUpdateOutcome::Skipped(format!("it is {}", ServerState::of(seat))))
            } else {
                None
            };
            match outcome {
                Some(outcome) => reports.push(untouched(handle, outcome)),
                None => wanted.push(id),
            }
        }
        let (at_once, floor) = match update.weights {
            WeightSource::Path(_) => (inner.options.updates_at_once, inner.options.min_running),
            WeightSource::Group(_) => (u32::MAX, 0),
        };
        let roll = RollingPlan::new(&table.board, model, wanted, at_once as usize, floor as usize);
        (reports, Some(roll))
    })
}

fn untouched(handle: &ServerHandle, outcome: ServerUpdateOutcome) -> ServerUpdateReport {
    ServerUpdateReport {
        id: handle.server.id,
        url: handle.server.spec.url.clone(),
        outcome,
        took: std::time::Duration::ZERO,
        in_flight: 0,
        aborted: 0,
    }
}

async fn carry_out(
    inner: &Arc<ModelsInner>,
    update: &WeightUpdate,
    mut roll: RollingPlan,
) -> Vec<ServerUpdateReport> {
    let mut reports = Vec::new();
    let mut under_way: FuturesUnordered<BoxFuture<'_, ServerUpdateReport>> =
        FuturesUnordered::new();
    let mut begun = 0;
    // Nobody is under way and nobody may begin: so long it may take until a server is back.
    let mut stuck: Option<Instant> = None;
    loop {
        // Registered before looking, so that nothing that happens in between is missed.
        let mut changed = Box::pin(inner.changed.notified());
        changed.as_mut().enable();
        let step = inner.with(|table| roll.next(&mut table.board));
        match step {
            RollingStep::Done => return reports,
            RollingStep::Begin(id) => {
                stuck = None;
                let handle = inner.with(|table| table.handles.get(&id).cloned());
                if let Some(handle) = handle {
                    let (index, inner) = (begun, Arc::clone(inner));
                    begun += 1;
                    under_way.push(Box::pin(async move {
                        replace(&inner, &handle, update, index).await
                    }));
                } else {
                    roll.done(id);
                }
            }
            RollingStep::Wait => {
                if roll.is_busy() {
                    stuck = None;
                } else {
                    stuck = stuck.or_else(|| Some(Instant::now() + update.timeout));
                }
                let given_up = tokio::time::sleep_until(stuck.unwrap_or_else(Instant::now));
                tokio::select! {
                    Some(report) = under_way.next() => {
                        roll.done(report.id);
                        reports.push(report);
                    }
                    () = changed => {}
                    () = given_up, if stuck.is_some() => {
                        reports.extend(roll.left().filter_map(|id| left_out(inner, id)));
                        return reports;
                    }
                }
            }
        }
    }
}

/// Says why a server's turn never came.
fn left_out(inner: &ModelsInner, id: ServerId) -> Option<ServerUpdateReport> {
    inner.with(|table| {
        let (handle, seat) = (table.handles.get(&id)?, table.board.seat(id)?);
        let why = match ServerState::of(seat) {
            ServerState::Running => "too few other servers could be used meanwhile".to_owned(),
            state => format!("it is {state}"),
        };
        Some(untouched(handle, ServerUpdateOutcome::Skipped(why)))
    })
}

/// Updates servers that came late, or back, to the weights that the others have.
pub(super) fn catch_up(inner: &Arc<ModelsInner>, handle: &ServerHandle) {
    let id = handle.server.id;
    let latest = inner.with(|table| {
        let seat = table.board.seat(id)?;
        let latest = table.latest.clone()?;
        let is_behind = table.board.trained() == Some(seat.model)
            && seat.is_usable()
            && seat.version != Some(latest.version)
            && control::cannot_update(handle.server.spec.engine).is_none();
        is_behind.then_some(latest)
    });
    if let Some(latest) = latest {
        let inner = Arc::clone(inner);
        tokio::spawn(async move { update(inner, latest).await });
    }
}

/// A path as the servers are told it.
pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
