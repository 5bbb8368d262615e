//! Generation of one response, token by token.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::faults::MockFault;
use super::generation_state::{Gate, GenerationState, Speed};
use super::record::{RecordedChoice, RecordedToken, RequestEnd};
use super::request::MockRequest;
use super::script::Script;
use super::text::{Decoder, END};

/// A token of a choice.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) choice: usize,
    pub(super) position: u32,
    /// `None`: the choice was aborted.
    pub(super) token: Option<RecordedToken>,
    /// Characters that the token completes.
    pub(super) piece: String,
    /// Text that can be sent now. Text that might become a stop string is held back.
    pub(super) text: String,
    pub(super) call: Option<CallPart>,
    pub(super) finish: Option<Finish>,
}

/// Part of a tool call that a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallPart {
    Name(String),
    Arguments(String),
    Nothing,
}

/// End of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finish {
    /// `stop`, `length` or `abort`.
    pub(super) reason: &'static str,
    /// The matched stop string.
    pub(super) stop: Option<String>,
}

#[derive(Debug)]
pub(super) enum Event {
    /// A token for every open choice.
    Steps(Vec<Step>),
    End,
    /// The connection is closed.
    Cut,
}

#[derive(Debug)]
struct Choice {
    script: Script,
    limit: u32,
    decoder: Decoder,
    text: String,
    /// Bytes of the text that were sent.
    sent: usize,
    made: u32,
    record: RecordedChoice,
    is_done: bool,
}

/// A running request. Dropping it before its end aborts it.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) state: Arc<GenerationState>,
    pub(super) request: MockRequest,
    pub(super) fault: Option<MockFault>,
    number: u64,
    abort: CancellationToken,
    gate: watch::Receiver<Gate>,
    choices: Vec<Choice>,
    position: u32,
    speed: Speed,
    due: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    slot: Option<OwnedSemaphorePermit>,
    is_recorded: bool,
    is_frozen: bool,
    end: Option<RequestEnd>,
}

impl Generation {
    /// Admits a request and waits until it may run.
    pub(super) async fn begin(
        state: &Arc<GenerationState>,
        request: MockRequest,
        fault: Option<MockFault>,
    ) -> Self {
        let (number, abort) = state.admit(&request);
        let choices = (0..request.choices()).map(|index| Choice {
            script: request.script(state, index),
            limit: request.limit(state, index / request.n as usize),
            decoder: Decoder::default(),
            text: String::new(),
            sent: 0,
            made: 0,
            record: RecordedChoice::default(),
            is_done: false,
        });
        let (speed, is_recorded) = {
            let inner = state.lock();
            (inner.speed, inner.records.is_on())
        };
        state.count(|counts| counts.waiting += 1);
        let mut generation = Self {
            choices: choices.collect(),
            gate: state.gate.subscribe(),
            state: Arc::clone(state),
            request,
            fault,
            number,
            abort,
            position: 0,
            speed,
            due: Instant::now(),
            timer: None,
            slot: None,
            is_recorded,
            is_frozen: false,
            end: None,
        };
        generation.admit().await;
        generation
    }

    async fn admit(&mut self) {
        let state = Arc::clone(&self.state);
        let abort = self.abort.clone();
        let wait_for_slot = async {
            let slot = Arc::clone(&state.slots).acquire_owned().await.ok();
            loop {
                state.admitted().await;
                state.count(|counts| {
                    counts.waiting -= 1;
                    counts.running += 1;
                });
                // The gate may have closed meanwhile: its closing also reads the number of running
                // requests.
                if state.gate.borrow().admits() {
                    return slot;
                }
                state.count(|counts| {
                    counts.waiting += 1;
                    counts.running -= 1;
                });
            }
        };
        tokio::select! {
            biased;
            slot = wait_for_slot => self.slot = slot,
            () = abort.cancelled() => {}
        }
        self.due = Instant::now() + self.speed.first;
    }

    pub(super) fn completion_tokens(&self) -> u64 {
        self.choices.iter().map(|choice| u64::from(choice.made)).sum()
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.request.prompts.iter().map(|prompt| prompt.len() as u64).sum()
    }

    pub(super) fn script(&self, choice: usize) -> &Script {
        &self.choices[choice].script
    }

    pub(super) async fn next(&mut self) -> Event {
        if self.choices.iter().all(|choice| choice.is_done) {
            return Event::End;
        }
        if matches!(self.fault, Some(MockFault::CutAfter(after)) if self.position >= after) {
            self.end(RequestEnd::Failed);
            return Event::Cut;
        }
        let Some((version, name)) = self.next_weights().await else {
            return Event::Steps(self.aborted());
        };
        if self.gate.borrow().has_lost_weights {
            // As vLLM does: the engine ends, and with it the server.
            self.state.lock().healthy = false;
            self.end(RequestEnd::Failed);
            return Event::Cut;
        }
        let position = self.position;
        let recorded = self.is_recorded;
        let stops = &self.request.stop;
        let open = self.choices.iter_mut().enumerate().filter(|(_, choice)| !choice.is_done);
        let steps = open.map(|(index, choice)| {
            let (id, logprob) = choice.script.token(version, position);
            let token = RecordedToken { id, logprob, version, version_name: Arc::clone(&name) };
            if recorded {
                choice.record.tokens.push(token.clone());
            }
            choice.advance(index, token, position, stops)
        });
        let steps = steps.collect();
        self.position += 1;
        if self.choices.iter().all(|choice| choice.is_done) {
            self.end(RequestEnd::Complete);
        }
        if let Some(next) = self.speed.next {
            // Time spent frozen is not made up for.
            let now = Instant::now();
            self.due = (self.due + next).max(now);
        }
        Event::Steps(steps)
    }

    /// Waits until the next token is due, and returns the weights that generate it. `None`:
    /// aborted.
    async fn next_weights(&mut self) -> Option<(u64, Arc<str>)> {
        let is_hung = match self.fault {
            Some(MockFault::Hang) => true,
            Some(MockFault::HangAfter(after)) => self.position >= after,
            _ => false,
        };
        loop {
            if self.abort.is_cancelled() {
                return None;
            }
            let open = {
                let gate = self.gate.borrow_and_update();
                (gate.emits(self.position) && !is_hung)
                    .then(|| (gate.version, Arc::clone(&gate.name)))
            };
            self.freeze(open.is_none());
            match open {
                Some(weights) if self.due <= Instant::now() => return Some(weights),
                Some(_) => {
                    let due = self.due;
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
                    timer.as_mut().reset(due);
                    tokio::select! {
                        () = timer.as_mut() => {}
                        () = self.abort.cancelled() => {}
                    }
                }
                None => tokio::select! {
                    _ = self.gate.changed() => {}
                    () = self.abort.cancelled() => {}
                },
            }
        }
    }

    fn freeze(&mut self, is_frozen: bool) {
        if self.is_frozen == is_frozen {
            return;
        }
        self.is_frozen = is_frozen;
        self.flush();
        self.state.count(|counts| match is_frozen {
            true => counts.frozen += 1,
            false => counts.frozen -= 1,
        });
    }

    fn aborted(&mut self) -> Vec<Step> {
        let position = self.position;
        let open = self.choices.iter_mut().enumerate().filter(|(_, choice)| !choice.is_done);
        let steps = open.map(|(index, choice)| choice.aborted(index, position)).collect();
        self.end(RequestEnd::Aborted);
        steps
    }

    fn flush(&mut self) {
        if !self.is_recorded {
            return;
        }
        let choices = self.choices.iter().map(|choice| choice.record.clone()).collect();
        let mut inner = self.state.lock();
        if let Some(record) = inner.records.get_mut(self.number) {
            record.choices = choices;
            record.end = self.end;
        }
    }

    fn end(&mut self, end: RequestEnd) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.freeze(false);
        self.flush();
        self.state.lock().active.remove(&self.number);
        let was_running = self.slot.take().is_some();
        self.state.count(|counts| {
            match was_running {
                true => counts.running -= 1,
                false => counts.waiting -= 1,
            }
            match end {
                RequestEnd::Complete => counts.completed += 1,
                RequestEnd::Aborted => counts.aborted += 1,
                RequestEnd::Left => counts.left += 1,
                RequestEnd::Failed => counts.failed += 1,
            }
        });
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.end(RequestEnd::Left);
    }
}

impl Choice {
    fn advance(
        &mut self,
        index: usize,
        token: RecordedToken,
        position: u32,
        stops: &[String],
    ) -> Step {
        self.made += 1;
        let piece = self.decoder.push(&self.script.bytes(token.id));
        let call = self.script.call().map(|call| {
            let (start, end) = call.arguments;
            let at = position as usize;
            if at + 1 == start {
                CallPart::Name(call.name.clone())
            } else if (start..end).contains(&at) {
                CallPart::Arguments(piece.clone())
            } else {
                CallPart::Nothing
            }
        });
        self.text.push_str(&piece);
        let mut finish = None;
        if call.is_none()
            && let Some((at, stop)) = find_stop(&self.text, self.sent, stops)
        {
            self.text.truncate(at);
            finish = Some(Finish { reason: "stop", stop: Some(stop.to_owned()) });
        } else if token.id == END {
            finish = Some(Finish { reason: "stop", stop: None });
        } else if self.made >= self.limit {
            finish = Some(Finish { reason: "length", stop: None });
        }
        self.record.finish_reason = finish.as_ref().map(|finish| finish.reason);
        self.is_done = finish.is_some();
        let sent = self.send_text(stops);
        Step { choice: index, position, token: Some(token), piece, text: sent, call, finish }
    }

    fn aborted(&mut self, index: usize, position: u32) -> Step {
        self.is_done = true;
        self.record.finish_reason = Some("abort");
        let sent = self.send_text(&[]);
        let finish = Some(Finish { reason: "abort", stop: None });
        let call = self.script.call().map(|_| CallPart::Nothing);
        Step {
            choice: index,
            position,
            token: None,
            piece: String::new(),
            text: sent,
            call,
            finish,
        }
    }

    /// Returns the text that can be sent: all but what might become a stop string.
    fn send_text(&mut self, stops: &[String]) -> String {
        let held_back = match self.is_done {
            true => 0,
            false => stops.iter().map(|stop| stop.len() - 1).max().unwrap_or(0),
        };
        let end = self.text.floor_char_boundary(self.text.len().saturating_sub(held_back));
        if end <= self.sent {
            return String::new();
        }
        let sent = self.text[self.sent..end].to_owned();
        self.sent = end;
        sent
    }
}

/// Finds the first stop string in the unsent text.
fn find_stop<'a>(text: &str, sent: usize, stops: &'a [String]) -> Option<(usize, &'a str)> {
    let rest = &text[sent.min(text.len())..];
    let matches = stops.iter().filter_map(|stop| rest.find(stop.as_str()).map(|at| (at, stop)));
    matches.min_by_key(|(at, _)| *at).map(|(at, stop)| (sent + at, stop.as_str()))
}
