//! Execution of rolling updates.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::rolling_plan::{RollingPlan, RollingStep};
use super::routing::{Health, ServerDuty};
use super::server_update::update_server;
use super::weight_update::{
    ServerUpdateOutcome, ServerUpdateReport, WeightSource, WeightUpdate, WeightUpdateReport,
};
use super::{ModelsInner, ServerHandle, ServerId, ServerState, ServerTable};

/// Updates the servers of the trained model. Updates are serialized; an update is skipped if one
/// with a newer version waits.
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
    if let Some((roll, time_left)) = roll {
        servers.extend(carry_out(&inner, &update, roll, time_left).await);
    }
    servers.sort_by_key(|server| server.id);
    let has = |outcome: &ServerUpdateOutcome| servers.iter().any(|it| it.outcome == *outcome);
    let (is_new, is_current) =
        (has(&ServerUpdateOutcome::Updated), has(&ServerUpdateOutcome::AlreadyCurrent));
    inner.with(|table| match &update.weights {
        // An earlier process may have loaded them: a server that restarts later needs them too.
        WeightSource::Path(_) if is_new || is_current => {
            (table.latest, table.sent) = (Some(update), None);
        }
        // Weights sent over a group cannot be loaded again.
        WeightSource::Group(_) if is_new => {
            (table.latest, table.sent) = (None, Some(version));
        }
        _ => {}
    });
    // Skipped servers may have become healthy during the update.
    for id in skipped {
        inner.with(|table| {
            let handle = table.handles.get(&id).cloned();
            if let Some(handle) = handle
                && mark_behind(table, &handle).is_some()
            {
                handle.check_now.notify_one();
            }
        });
    }
    WeightUpdateReport { version, superseded_by: None, servers }
}

/// Reports the servers that need not or cannot be updated, and plans the others. The duration is
/// the maximum wait while none of them can be updated.
fn plan(
    inner: &ModelsInner,
    update: &WeightUpdate,
) -> (Vec<ServerUpdateReport>, Option<(RollingPlan, Duration)>) {
    inner.with(|table| {
        let Some(model) = table.routing.trained() else { return (Vec::new(), None) };
        let (mut reports, mut wanted, mut unhealthy) = (Vec::new(), Vec::new(), Vec::new());
        for (id, slot) in table.routing.slots(model) {
            let Some(handle) = table.handles.get(&id) else { continue };
            let outcome = if slot.duty == ServerDuty::Open && slot.loaded == Some(update.version) {
                Some(ServerUpdateOutcome::AlreadyCurrent)
            } else if let Some(reason) = cannot_take(handle, update) {
                Some(ServerUpdateOutcome::Skipped(reason))
            } else if slot.health != Health::Healthy || slot.duty == ServerDuty::Leaving {
                unhealthy.extend((slot.duty != ServerDuty::Leaving).then_some(id));
                Some(ServerUpdateOutcome::Skipped(format!("it is {}", ServerState::of(slot))))
            } else {
                None
            };
            match outcome {
                Some(outcome) => reports.push(untouched(handle, outcome)),
                None => wanted.push(id),
            }
        }
        let mut time_left = update.timeout;
        if wanted.is_empty() && unhealthy.len() == reports.len() {
            // No other server has or gets the weights: these are waited for, as calls do.
            (wanted, time_left) = (unhealthy, inner.options.max_wait.min(update.timeout));
            reports.clear();
        }
        let (at_once, floor) = match update.weights {
            WeightSource::Path(_) => (inner.options.updates_at_once, inner.options.min_running),
            WeightSource::Group(_) => (u32::MAX, 0),
        };
        let roll =
            RollingPlan::new(&table.routing, model, wanted, at_once as usize, floor as usize);
        (reports, Some((roll, time_left)))
    })
}

/// Returns the reason why a server cannot take the weights of an update, if so.
fn cannot_take(handle: &ServerHandle, update: &WeightUpdate) -> Option<String> {
    let info = handle.info();
    match update.weights {
        WeightSource::Path(_) => info.capabilities.cannot_load_folder(),
        WeightSource::Group(_) => info.capabilities.cannot_transfer(),
    }
}

fn untouched(handle: &ServerHandle, outcome: ServerUpdateOutcome) -> ServerUpdateReport {
    ServerUpdateReport {
        id: handle.server.id,
        url: handle.server.spec.url.clone(),
        outcome,
        took: Duration::ZERO,
        in_flight: 0,
        aborted: 0,
    }
}

async fn carry_out(
    inner: &Arc<ModelsInner>,
    update: &WeightUpdate,
    mut roll: RollingPlan,
    time_left: Duration,
) -> Vec<ServerUpdateReport> {
    let mut reports = Vec::new();
    let mut in_progress: FuturesUnordered<BoxFuture<'_, ServerUpdateReport>> =
        FuturesUnordered::new();
    let mut begun = 0;
    // Deadline while no server can be updated.
    let mut stuck: Option<Instant> = None;
    loop {
        // Registered before the check, so that no notification is missed.
        let mut changed = Box::pin(inner.changed.notified());
        changed.as_mut().enable();
        let step = inner.with(|table| roll.next(&mut table.routing));
        match step {
            RollingStep::Done => return reports,
            RollingStep::Begin(id) => {
                stuck = None;
                let handle = inner.with(|table| table.handles.get(&id).cloned());
                if let Some(handle) = handle {
                    let (index, inner) = (begun, Arc::clone(inner));
                    begun += 1;
                    in_progress.push(Box::pin(async move {
                        update_server(&inner, &handle, update, index).await
                    }));
                } else {
                    roll.done(id);
                }
            }
            RollingStep::Wait => {
                if roll.is_updating() {
                    stuck = None;
                } else {
                    stuck = stuck.or_else(|| Some(Instant::now() + time_left));
                }
                let given_up = tokio::time::sleep_until(stuck.unwrap_or_else(Instant::now));
                tokio::select! {
                    Some(report) = in_progress.next() => {
                        roll.done(report.id);
                        reports.push(report);
                    }
                    () = changed => {}
                    () = given_up, if stuck.is_some() => {
                        reports.extend(roll.left().filter_map(|id| skip_report(inner, id)));
                        return reports;
                    }
                }
            }
        }
    }
}

/// Reports a server that was never begun.
fn skip_report(inner: &ModelsInner, id: ServerId) -> Option<ServerUpdateReport> {
    inner.with(|table| {
        let (handle, slot) = (table.handles.get(&id)?, table.routing.slot(id)?);
        let reason = match ServerState::of(slot) {
            ServerState::Running => "too few other servers could be used meanwhile".to_owned(),
            state => format!("it is {state}"),
        };
        Some(untouched(handle, ServerUpdateOutcome::Skipped(reason)))
    })
}

/// Excludes a server from routing while it has older weights than the latest update. Returns the
/// update that it needs. Weights sent over a group cannot be loaded again: until the next update
/// the server is not used while another one has them.
pub(super) fn mark_behind(table: &mut ServerTable, handle: &ServerHandle) -> Option<WeightUpdate> {
    let (id, trained) = (handle.server.id, table.routing.trained());
    let latest = table.latest.clone().filter(|latest| cannot_take(handle, latest).is_none());
    let sent = table.sent.filter(|sent| has_another(table, id, *sent));
    let slot = table.routing.slot_mut(id)?;
    let is_older = |version: u64| {
        trained == Some(slot.model)
            && slot.health == Health::Healthy
            && slot.duty == ServerDuty::Open
            && slot.loaded.is_none_or(|loaded| loaded < version)
    };
    let latest = latest.filter(|latest| is_older(latest.version));
    slot.is_behind = latest.is_some() || sent.is_some_and(is_older);
    latest
}

/// Returns whether another usable server of the trained model has at least a version.
fn has_another(table: &ServerTable, id: ServerId, version: u64) -> bool {
    let model = table.routing.trained();
    let mut slots = model.into_iter().flat_map(|model| table.routing.slots(model));
    slots.any(|(other, slot)| {
        other != id && slot.is_usable() && slot.loaded.is_some_and(|loaded| loaded >= version)
    })
}

/// Starts the update of late or returning servers. During another update, which may include them,
/// the next health check does so.
pub(super) fn catch_up(inner: &Arc<ModelsInner>, latest: WeightUpdate) {
    if inner.updating.try_lock().is_ok() {
        let inner = Arc::clone(inner);
        tokio::spawn(async move { update(inner, latest).await });
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
