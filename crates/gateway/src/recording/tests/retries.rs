//! Which calls count: by example, and with clients that lose their connections at random.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn keyed(key: &str, is_retry: bool) -> RetryHeaders {
    RetryHeaders { idempotency_key: Some(key.to_owned()), is_retry }
}

fn ids(recorder: &Recorder) -> Vec<String> {
    let experiences = recorder.experiences(0).unwrap();
    let ids = experiences.iter().map(|experience| experience.info.value()["message_ids"].clone());
    ids.flat_map(|ids| serde_json::from_value::<Vec<String>>(ids).unwrap()).collect()
}

fn complete(recorder: &mut Recorder, number: CallNumber, id: &str) {
    recorder.answered(number, answer(id, &[1], vec![choice(&[2, 3], id)]), kept(id)).unwrap();
}

fn abort(recorder: &mut Recorder, number: CallNumber, id: &str) {
    let mut answer = answer(id, &[1], vec![choice(&[2], "")]);
    answer.end = ResponseEnd::Aborted;
    recorder.answered(number, answer, kept("")).unwrap();
}

#[test]
fn an_idempotency_key_names_one_call() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let call = chat(json!([]));
    let first = begin(&mut recorder, 0, &call, &keyed("k", false));
    assert_eq!(recorder.begin_as([0; 32], &call, &keyed("k", false)), Err(RecordError::UnderWay));
    complete(&mut recorder, first, "a");
    recorder.delivered(first);
    let again = recorder.begin_as([0; 32], &call, &keyed("k", false));
    assert_eq!(again, Ok(CallDecision::Duplicate(first, kept("a"))));
    let reused = recorder.begin_as([1; 32], &call, &keyed("k", false));
    assert_eq!(reused, Err(RecordError::KeyReused("k".to_owned())));
    // Another key is another call, even with the same words.
    let other = begin(&mut recorder, 0, &call, &keyed("l", true));
    complete(&mut recorder, other, "b");
    assert_eq!(ids(&recorder), ["a", "b"]);
    assert_eq!(recorder.counts().retries, 1);
}

#[test]
fn the_same_words_are_a_new_sample_unless_the_answer_was_lost() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let call = chat(json!([]));
    let unmarked = RetryHeaders::default();
    let first = begin(&mut recorder, 0, &call, &unmarked);
    complete(&mut recorder, first, "a");
    // Its answer is on its way: asking at the same time is sampling twice.
    let second = begin(&mut recorder, 0, &call, &unmarked);
    recorder.client_disconnected(first);
    assert_eq!(
        recorder.begin_as([0; 32], &call, &unmarked),
        Ok(CallDecision::Duplicate(first, kept("a")))
    );
    recorder.delivered(first);
    complete(&mut recorder, second, "b");
    recorder.delivered(second);
    let third = begin(&mut recorder, 0, &call, &unmarked);
    recorder.upstream_failed(third);
    begin(&mut recorder, 0, &call, &retry());
    assert_eq!(ids(&recorder), ["a", "b"]);
}

#[test]
fn a_retry_gets_the_latest_answer_even_if_it_was_delivered() {
    let mut recorder = Recorder::new(RecorderLimits { max_kept: 1, ..RecorderLimits::default() });
    let call = chat(json!([]));
    let first = begin(&mut recorder, 0, &call, &RetryHeaders::default());
    complete(&mut recorder, first, "a");
    recorder.delivered(first);
    let again = recorder.begin_as([0; 32], &call, &retry());
    assert_eq!(again, Ok(CallDecision::Duplicate(first, kept("a"))));
    recorder.delivered(first);
    // The answer is no longer kept: the retry takes its place.
    let other = begin(&mut recorder, 1, &call, &RetryHeaders::default());
    complete(&mut recorder, other, "b");
    let second = begin(&mut recorder, 0, &call, &retry());
    assert_eq!(ids(&recorder), ["a", "b"]);
    complete(&mut recorder, second, "c");
    assert_eq!(ids(&recorder), ["b", "c"]);
    let counts = recorder.counts();
    assert_eq!((counts.dropped, counts.replaced, counts.calls, counts.retries), (2, 1, 3, 1));
}

#[test]
fn a_retry_of_what_was_aborted_replaces_it() {
    let mut recorder = Recorder::new(RecorderLimits::default());
    let call = chat(json!([]));
    let first = begin(&mut recorder, 0, &call, &RetryHeaders::default());
    abort(&mut recorder, first, "a");
    assert_eq!(recorder.experiences(0).unwrap()[0].info.value()["aborted"], json!(true));
    let second = begin(&mut recorder, 0, &call, &retry());
    recorder.upstream_failed(second);
    assert_eq!(ids(&recorder), ["a"], "nothing has taken its place yet");
    let third = begin(&mut recorder, 0, &call, &retry());
    complete(&mut recorder, third, "c");
    assert_eq!(ids(&recorder), ["c"]);
    let counts = recorder.counts();
    assert_eq!((counts.calls, counts.aborted, counts.replaced), (2, 1, 1));
    assert_eq!(recorder.turns(), 2, "numbers are not used again");
    assert_eq!(recorder.turns_of(first), []);
}

#[test]
fn a_retry_wins_over_the_call_that_its_client_gave_up() {
    for late_is_complete in [false, true] {
        let mut recorder = Recorder::new(RecorderLimits::default());
        let call = chat(json!([]));
        let first = begin(&mut recorder, 0, &call, &RetryHeaders::default());
        let second = begin(&mut recorder, 0, &call, &retry());
        complete(&mut recorder, second, "b");
        if late_is_complete {
            complete(&mut recorder, first, "a");
        } else {
            abort(&mut recorder, first, "a");
        }
        assert_eq!(ids(&recorder), ["b"]);
        assert_eq!(recorder.counts().replaced, 1);
    }
}

/// What a client's call is at.
#[derive(Clone, Debug, PartialEq)]
enum At {
    UnderWay(CallNumber),
    /// The answer with this id is on its way.
    OnItsWay(CallNumber, String),
    /// It has lost its connection, and will ask again.
    Waits,
    Done,
}

/// What becomes known later about a connection that was lost.
#[derive(Clone, Debug)]
enum Late {
    UnderWay(CallNumber),
    OnItsWay(CallNumber),
}

/// Clients of one run, and what they have got.
#[derive(Debug)]
struct World {
    recorder: Recorder,
    /// The words of each call, and what it is at.
    calls: Vec<(u8, At)>,
    late: Vec<Late>,
    got: HashSet<String>,
    answers: u32,
}

impl World {
    fn id(&mut self) -> String {
        self.answers += 1;
        self.answers.to_string()
    }

    fn begin(&mut self, words: u8, attempted: &RetryHeaders) -> At {
        match self.recorder.begin_as([words; 32], &chat(json!([])), attempted).unwrap() {
            CallDecision::New(number) => At::UnderWay(number),
            CallDecision::Duplicate(number, kept) => {
                At::OnItsWay(number, String::from_utf8(kept.parts[0].to_vec()).unwrap())
            }
        }
    }

    /// A connection that was lost is noticed.
    fn notice(&mut self, late: Late, is_complete: bool) {
        let id = self.id();
        match late {
            Late::UnderWay(number) if is_complete => {
                complete(&mut self.recorder, number, &id);
                self.recorder.client_disconnected(number);
            }
            Late::UnderWay(number) => abort(&mut self.recorder, number, &id),
            Late::OnItsWay(number) => self.recorder.client_disconnected(number),
        }
    }

    fn step(&mut self, kind: u8, which: usize, flag: bool) {
        if kind == 0 {
            let at = self.begin(u8::from(flag), &RetryHeaders::default());
            self.calls.push((u8::from(flag), at));
            return;
        }
        if kind == 1 && !self.late.is_empty() {
            let late = self.late.swap_remove(which % self.late.len());
            return self.notice(late, flag);
        }
        if self.calls.is_empty() {
            return;
        }
        let which = which % self.calls.len();
        let (words, at) = self.calls[which].clone();
        self.calls[which].1 = match (at, kind) {
            (At::Waits, _) => self.begin(words, &retry()),
            (At::UnderWay(number), 2 | 3) => {
                let id = self.id();
                complete(&mut self.recorder, number, &id);
                At::OnItsWay(number, id)
            }
            (At::UnderWay(number), 4) => {
                self.recorder.upstream_failed(number);
                At::Waits
            }
            (At::UnderWay(number), 5) => {
                self.late.push(Late::UnderWay(number));
                At::Waits
            }
            (At::OnItsWay(number, id), 2 | 3) => {
                self.recorder.delivered(number);
                self.got.insert(id);
                At::Done
            }
            (At::OnItsWay(number, _), 5) => {
                self.late.push(Late::OnItsWay(number));
                At::Waits
            }
            (at, _) => at,
        };
    }
}

/// Lets clients do what they do, until every one has got its answer and every loss was noticed.
fn play(steps: Vec<(u8, usize, bool)>, in_turn: bool) -> World {
    let mut world = World {
        recorder: Recorder::new(RecorderLimits::default()),
        calls: Vec::new(),
        late: Vec::new(),
        got: HashSet::new(),
        answers: 0,
    };
    for (kind, which, flag) in steps {
        let busy = |(words, at): &(u8, At)| *words == u8::from(flag) && *at != At::Done;
        if !(in_turn && kind == 0 && world.calls.iter().any(busy)) {
            world.step(kind, which, flag);
        }
    }
    while let Some(late) = world.late.pop() {
        world.notice(late, false);
    }
    for which in 0..world.calls.len() {
        while world.calls[which].1 != At::Done {
            world.step(2, which, false);
        }
    }
    world
}

fn steps() -> impl Strategy<Value = Vec<(u8, usize, bool)>> {
    prop::collection::vec((0..6u8, any::<usize>(), any::<bool>()), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn what_clients_got_is_recorded_once_and_nothing_else(steps in steps()) {
        let world = play(steps, true);
        let recorded = ids(&world.recorder);
        let distinct: HashSet<String> = recorded.iter().cloned().collect();
        prop_assert_eq!(distinct.len(), recorded.len());
        prop_assert_eq!(distinct, world.got);
    }

    // With the same words several times at once it cannot always be told who has asked again.
    // Then an aborted answer may stay, but nothing that a client got is missing or there twice.
    #[test]
    fn samples_that_are_taken_at_once_are_all_recorded(steps in steps()) {
        let world = play(steps, false);
        let recorded = ids(&world.recorder);
        let distinct: HashSet<String> = recorded.iter().cloned().collect();
        prop_assert_eq!(distinct.len(), recorded.len());
        prop_assert!(world.got.is_subset(&distinct), "{:?} {:?}", world.got, distinct);
        for experience in world.recorder.experiences(0).unwrap() {
            let info = experience.info.value();
            let id = info["message_ids"][0].as_str().unwrap();
            prop_assert!(world.got.contains(id) || info["aborted"] == true, "{id}");
        }
        let counts = world.recorder.counts();
        prop_assert_eq!(counts.calls - counts.replaced, recorded.len() as u64);
    }
}
