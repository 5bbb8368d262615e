//! Deduplicates client retries.
//!
//! A client may also send the same call several times to get several samples; [`CallLog::begin`]
//! tells the two apart.

use std::collections::{HashMap, VecDeque};
use std::mem;

use rollway_model_api::replay::SavedResponse;

use super::trie::TrieNode;
use super::turn_table::TurnContent;
use super::{CallDecision, CallNumber, RecordError, RetryHeaders};

pub(super) type Fingerprint = [u8; 32];

/// Estimated memory of a call.
pub(super) const CALL_BYTES: usize = 256;

/// Estimated memory of a group.
const GROUP_BYTES: usize = size_of::<(Fingerprint, DuplicateGroup)>();

#[derive(Debug, Default)]
pub(super) struct CallLog {
    next: u64,
    calls: HashMap<u64, LoggedCall>,
    keys: HashMap<String, u64>,
    groups_by_body: HashMap<Fingerprint, DuplicateGroup>,
    saved: HashMap<u64, SavedResponse>,
    /// Numbers of the saved responses, oldest first.
    order: VecDeque<u64>,
    bytes: usize,
}

/// Calls with the same body and without an idempotency key.
#[derive(Debug, Default)]
struct DuplicateGroup {
    numbers: Vec<u64>,
    /// Number of failed calls whose retries have not come.
    unanswered: u32,
    /// Retries of which it is not known yet which call they replace.
    claims: VecDeque<u64>,
}

#[derive(Debug)]
struct LoggedCall {
    fingerprint: Fingerprint,
    key: Option<String>,
    content: TurnContent,
    state: CallState,
    /// Number of deliveries in progress.
    deliveries: u32,
    /// Calls that no longer count once this one is recorded.
    replaces: Vec<u64>,
    replaced_by: Option<u64>,
    turns: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    InFlight,
    Aborted,
    /// Answered; delivery in progress.
    InDelivery,
    Delivered,
    /// Answered, but the client disconnected before the end.
    Undelivered,
}

impl CallState {
    fn is_complete(self) -> bool {
        matches!(self, Self::InDelivery | Self::Delivered | Self::Undelivered)
    }

    fn is_settled(self) -> bool {
        !matches!(self, Self::InFlight | Self::InDelivery)
    }
}

impl CallLog {
    /// Matches a call with earlier ones.
    ///
    /// With an idempotency key it is the call with that key, or new. If that one is in flight, it
    /// must end first, unless the client marks a retry: then the call replaces it. Without a key it
    /// is compared with the calls of the same body; the first applicable rule decides:
    ///
    /// 1. One was answered but not delivered: its response is returned again.
    /// 2. One was aborted: the call is new and replaces it.
    ///
    /// and, if the client marks a retry,
    ///
    /// 3. One failed, or was replaced by rule 1 or 2: the call is new.
    /// 4. One is in flight: its client has given it up. If it is the only call of the body, the new
    ///    call replaces it, and its response does not count. Among several, the call replaces the
    ///    first that turns out to have failed.
    /// 5. One was delivered: its response is returned again.
    ///
    /// Anything else is a new call: two samples. Of several calls the latest counts. If a response
    /// is no longer saved, the call is new and replaces it.
    pub(super) fn begin(
        &mut self,
        fingerprint: Fingerprint,
        retry: &RetryHeaders,
        content: TurnContent,
    ) -> Result<CallDecision, RecordError> {
        let mut claims = false;
        let earlier = match &retry.idempotency_key {
            Some(key) => match self.keys.get(key).copied() {
                Some(number) => match self.calls.get(&number) {
                    Some(call) if call.fingerprint != fingerprint => {
                        return Err(RecordError::KeyReused(key.clone()));
                    }
                    Some(call) if call.state == CallState::InFlight && !retry.is_retry => {
                        return Err(RecordError::UnderWay);
                    }
                    Some(_) | None => Some(number),
                },
                None => None,
            },
            None => {
                let found = self.earlier(fingerprint, retry.is_retry);
                claims = found.claims;
                found.number
            }
        };
        if let Some(number) = earlier
            && let Some(call) = self.calls.get_mut(&number)
            && call.state.is_complete()
            && let Some(saved) = self.saved.get(&number)
        {
            call.state = CallState::InDelivery;
            call.deliveries += 1;
            return Ok(CallDecision::Duplicate(CallNumber(number), saved.clone()));
        }
        let number = self.next;
        self.next += 1;
        let key = retry.idempotency_key.clone();
        match &key {
            Some(key) => {
                self.keys.insert(key.clone(), number);
            }
            None => {
                let group = self.groups_by_body.entry(fingerprint).or_insert_with(|| {
                    self.bytes += GROUP_BYTES;
                    DuplicateGroup::default()
                });
                group.numbers.push(number);
                group.claims.extend(claims.then_some(number));
            }
        }
        self.bytes += CALL_BYTES + 2 * key.as_ref().map_or(0, String::len);
        let call = LoggedCall {
            fingerprint,
            key,
            content,
            state: CallState::InFlight,
            deliveries: 0,
            replaces: earlier.into_iter().collect(),
            replaced_by: None,
            turns: Vec::new(),
        };
        self.calls.insert(number, call);
        if let Some(earlier) = earlier {
            self.set_replaced_by(earlier, Some(number));
        }
        Ok(CallDecision::New(CallNumber(number)))
    }

    /// Sets the call that replaces another one; claims move along.
    fn set_replaced_by(&mut self, number: u64, newer: Option<u64>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let before = mem::replace(&mut call.replaced_by, newer);
        let (from, to) = match (before, newer) {
            (_, Some(newer)) => (number, newer),
            (Some(newer), None) => (newer, number),
            (None, None) => return,
        };
        if let Some(group) = self.groups_by_body.get_mut(&call.fingerprint) {
            group.claims.iter_mut().filter(|claim| **claim == from).for_each(|claim| *claim = to);
        }
    }

    /// Finds the earlier call of a retry, among those of the same body.
    fn earlier(&mut self, fingerprint: Fingerprint, is_retry: bool) -> Earlier {
        let Some(group) = self.groups_by_body.get_mut(&fingerprint) else {
            return Earlier::default();
        };
        let states: Vec<(u64, CallState)> = group
            .numbers
            .iter()
            .filter_map(|number| Some((*number, self.calls.get(number)?)))
            .filter(|(_, call)| call.replaced_by.is_none())
            .map(|(number, call)| (number, call.state))
            .collect();
        let latest = |wanted: CallState| {
            let mut latest = states.iter().rev();
            latest.find(|(_, state)| *state == wanted).map(|(number, _)| *number)
        };
        let lost = latest(CallState::Undelivered).or_else(|| latest(CallState::Aborted));
        if lost.is_some() || !is_retry {
            // If it came from another client, the retry of that one is still to come.
            group.unanswered += u32::from(lost.is_some() && !is_retry);
            return Earlier { number: lost, claims: false };
        }
        if group.unanswered > 0 {
            group.unanswered -= 1;
            return Earlier::default();
        }
        match states[..] {
            [] => Earlier::default(),
            [(only, _)] => Earlier { number: Some(only), claims: false },
            _ if states.iter().all(|(_, state)| *state == CallState::Delivered) => {
                Earlier { number: latest(CallState::Delivered), claims: false }
            }
            _ => Earlier { number: None, claims: true },
        }
    }

    /// Returns the content of a call in flight.
    pub(super) fn turn_content(&self, number: u64) -> Option<TurnContent> {
        let call = self.calls.get(&number)?;
        (call.state == CallState::InFlight).then_some(call.content)
    }

    pub(super) fn set_sampling(&mut self, number: u64, sampling: TrieNode) {
        if let Some(call) = self.calls.get_mut(&number) {
            call.content.sampling = Some(sampling);
        }
    }

    pub(super) fn is_replaced(&self, number: u64) -> bool {
        self.calls.get(&number).is_some_and(|call| call.replaced_by.is_some())
    }

    /// Marks a call as recorded. Returns the turns of each call that no longer counts.
    pub(super) fn recorded(
        &mut self,
        number: u64,
        turns: Vec<usize>,
        is_aborted: bool,
    ) -> Vec<Vec<usize>> {
        let Some(call) = self.calls.get_mut(&number) else { return Vec::new() };
        self.bytes += size_of_val(&*turns);
        call.turns = turns;
        call.state = if is_aborted { CallState::Aborted } else { CallState::InDelivery };
        call.deliveries = u32::from(!is_aborted);
        let mut dropped = self.clear(number);
        if is_aborted {
            dropped.append(&mut self.settle(number));
        }
        dropped
    }

    /// Removes the calls that a recorded call replaces, except those in flight. Returns the turns
    /// of each.
    fn clear(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(call) = self.calls.get_mut(&number) else { return Vec::new() };
        if call.state == CallState::InFlight {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        let mut replaced = mem::take(&mut call.replaces);
        while let Some(older) = replaced.pop() {
            let Some(call) = self.calls.get_mut(&older) else { continue };
            replaced.append(&mut call.replaces);
            if call.state != CallState::InFlight {
                dropped.extend(self.remove_call(older).map(|call| call.turns));
            }
        }
        dropped
    }

    pub(super) fn save_response(&mut self, number: u64, saved: SavedResponse) {
        if !self.calls.contains_key(&number) {
            return;
        }
        self.bytes += saved_bytes(&saved);
        self.order.push_back(number);
        if let Some(before) = self.saved.insert(number, saved) {
            self.bytes -= saved_bytes(&before);
        }
    }

    /// Drops the oldest saved response. Returns whether there was one.
    pub(super) fn drop_oldest(&mut self) -> bool {
        while let Some(number) = self.order.pop_front() {
            if let Some(saved) = self.saved.remove(&number) {
                self.bytes -= saved_bytes(&saved);
                return true;
            }
        }
        false
    }

    pub(super) fn saved(&self) -> usize {
        self.saved.len()
    }

    /// Ends a delivery. Returns the turns of each call that no longer counts.
    pub(super) fn end_delivery(&mut self, number: u64, is_delivered: bool) -> Vec<Vec<usize>> {
        let Some(call) = self.calls.get_mut(&number) else { return Vec::new() };
        if !call.state.is_complete() {
            return Vec::new();
        }
        // Of several deliveries one is enough.
        call.deliveries = call.deliveries.saturating_sub(1);
        if is_delivered {
            call.state = CallState::Delivered;
        } else if call.state != CallState::Delivered && call.deliveries == 0 {
            call.state = CallState::Undelivered;
        }
        self.settle(number)
    }

    /// Removes a call without a valid response. Returns the turns of each call that no longer
    /// counts.
    pub(super) fn remove_unanswered(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(call) = self.remove_call(number) else { return Vec::new() };
        let dropped = match call.replaced_by {
            Some(newer) => self.move_replaced(call.replaces, newer),
            None => self.restore_replaced(number, &call),
        };
        self.settle_claims(call.fingerprint);
        dropped
    }

    /// Moves the calls that one was to replace to another one.
    fn move_replaced(&mut self, replaces: Vec<u64>, to: u64) -> Vec<Vec<usize>> {
        for &older in &replaces {
            self.set_replaced_by(older, Some(to));
        }
        if let Some(newer) = self.calls.get_mut(&to) {
            newer.replaces.extend(replaces);
        }
        self.clear(to)
    }

    /// Restores the best of the calls that a removed call was to replace; without any, expects a
    /// retry of the removed call.
    fn restore_replaced(&mut self, number: u64, call: &LoggedCall) -> Vec<Vec<usize>> {
        let rank = |number: &u64| Some((self.calls.get(number)?.state.is_complete(), *number));
        if let Some((_, best)) = call.replaces.iter().filter_map(rank).max() {
            self.set_replaced_by(best, None);
            if let Some(key) = &call.key {
                self.keys.insert(key.clone(), best);
            }
            let others = call.replaces.iter().copied().filter(|&other| other != best);
            return self.move_replaced(others.collect(), best);
        }
        if call.key.is_none()
            && let Some(group) = self.groups_by_body.get_mut(&call.fingerprint)
            && !group.claims.contains(&number)
        {
            group.unanswered = group.unanswered.saturating_add(1);
        }
        Vec::new()
    }

    /// Ends a call. If it failed and a retry claims it, it no longer counts.
    fn settle(&mut self, number: u64) -> Vec<Vec<usize>> {
        let Some(call) = self.calls.get(&number) else { return Vec::new() };
        let fingerprint = call.fingerprint;
        let mut dropped = Vec::new();
        if call.key.is_none()
            && call.replaced_by.is_none()
            && matches!(call.state, CallState::Aborted | CallState::Undelivered)
            && let Some(group) = self.groups_by_body.get_mut(&fingerprint)
            && let Some(position) = group.claims.iter().position(|&claim| claim > number)
            && let Some(newer) = group.claims.remove(position)
        {
            dropped = self.move_replaced(vec![number], newer);
        }
        self.settle_claims(fingerprint);
        dropped
    }

    /// Drops claims for which no call is left.
    fn settle_claims(&mut self, fingerprint: Fingerprint) {
        let Some(group) = self.groups_by_body.get_mut(&fingerprint) else { return };
        let calls = &self.calls;
        let first = group
            .numbers
            .iter()
            .find(|number| calls.get(number).is_some_and(|call| !call.state.is_settled()));
        let first = first.copied();
        group.claims.retain(|&claim| {
            calls.contains_key(&claim) && first.is_some_and(|first| first < claim)
        });
    }

    fn remove_call(&mut self, number: u64) -> Option<LoggedCall> {
        let call = self.calls.remove(&number)?;
        self.bytes -= CALL_BYTES + size_of_val(&*call.turns);
        if let Some(saved) = self.saved.remove(&number) {
            self.bytes -= saved_bytes(&saved);
            self.order.retain(|&saved| saved != number);
        }
        if let Some(key) = &call.key {
            self.bytes -= 2 * key.len();
            if self.keys.get(key) == Some(&number) {
                self.keys.remove(key);
            }
        } else if let Some(group) = self.groups_by_body.get_mut(&call.fingerprint) {
            group.numbers.retain(|&call| call != number);
        }
        Some(call)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[derive(Debug, Default)]
struct Earlier {
    number: Option<u64>,
    claims: bool,
}

fn saved_bytes(saved: &SavedResponse) -> usize {
    saved.parts.iter().map(|part| part.len() + size_of_val(part)).sum()
}
