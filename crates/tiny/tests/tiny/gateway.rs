//! The server behind the gateway: recorded tokens, log-probabilities and versions are those of the
//! model.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollway_base::Secret;
use rollway_base::ServerKind;
use rollway_experience::{Experience, deserialize_many};
use rollway_gateway::gateway::{self, Gateway};
use rollway_gateway::keys::RunRef;
use rollway_gateway::models::{self, InFlightPolicy, ServerSpec, WeightUpdate};
use rollway_tiny::{TinyServer, TinyServerOptions};
use rollway_tiny_model::{Generated, Generator, ModelWeights, Vocabulary, arithmetic};
use serde_json::{Value, json};

use crate::client::request as http;
use crate::sums::{prompt, question, request};

pub(crate) struct World {
    pub(crate) server: TinyServer,
    pub(crate) gateway: Gateway,
}

impl World {
    pub(crate) async fn new(seed: u64) -> Self {
        let api_key = Some(Secret::random().unwrap());
        let options =
            TinyServerOptions { seed, api_key: api_key.clone(), ..TinyServerOptions::default() };
        let server = TinyServer::start(options).unwrap();
        let spec = ServerSpec {
            model: "trained".to_owned(),
            trained: true,
            engine: ServerKind::Vllm,
            url: server.url(),
            api_key,
            server_model: None,
        };
        let options = gateway::GatewayOptions {
            models: models::RoutingOptions {
                health_interval: Duration::from_millis(50),
                max_wait: Duration::from_secs(60),
                ..models::RoutingOptions::default()
            },
            ..gateway::GatewayOptions::new(Secret::new("admin").unwrap())
        };
        let gateway = Gateway::start(options, vec![spec]).await.unwrap();
        Self { server, gateway }
    }

    /// Loads weights of a folder into the server.
    pub(crate) async fn update(&self, version: u64, folder: &Path, in_flight: InFlightPolicy) {
        let weights = models::WeightSource::Path(folder.into());
        let timeout = Duration::from_secs(30);
        let update = WeightUpdate { version, weights, in_flight, timeout };
        self.gateway.handle().models().update(update).await;
    }

    /// Sends a call as a run and returns the response and what was recorded.
    pub(crate) async fn call(
        &self,
        attempt: u64,
        path: &str,
        body: &Value,
    ) -> (String, Vec<Experience>) {
        let handle = self.gateway.handle();
        let key = handle.open(attempt, 0, 1).remove(0);
        let (status, text) = http(self.gateway.url(), "POST", path, &key, body).await;
        assert_eq!(status, 200, "{text}");
        let (payload, _) = handle.experiences(RunRef { attempt, run: 0 }, 0).unwrap();
        (text, deserialize_many(payload.into()).unwrap())
    }
}

/// Completion of the model itself.
fn expected(weights: &ModelWeights, temperature: f32, seed: u64) -> Generated {
    let (_, vocabulary) = arithmetic();
    let request = request(prompt(&vocabulary, (12, 34)), temperature, seed);
    Generator::new(Arc::new(weights.clone())).complete(vec![request]).remove(0)
}

#[track_caller]
fn check(experience: &Experience, completion: &Generated, version: u64) {
    let (_, vocabulary) = arithmetic();
    let prompt = prompt(&vocabulary, (12, 34));
    let tokens: Vec<u32> = experience.tokens.iter().map(i32::cast_unsigned).collect();
    assert_eq!(tokens, [prompt.clone(), completion.tokens.clone()].concat());
    assert_eq!(experience.prompt_length, prompt.len());
    assert_eq!(experience.logprobs.as_ref().unwrap().to_vec(), completion.logprobs);
    let versions = experience.model_versions.as_ref().unwrap();
    assert_eq!(versions.iter().collect::<Vec<_>>(), vec![Some(version); completion.tokens.len()]);
}

fn chat(seed: u64) -> Value {
    let messages = [json!({ "role": "user", "content": question((12, 34)) })];
    json!({ "model": "trained", "messages": messages, "seed": seed, "max_tokens": 5 })
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_turns_are_those_of_the_model() {
    let (weights, vocabulary) = arithmetic();
    let world = World::new(0).await;
    for seed in 0..6 {
        let completion = expected(&weights, 1.0, seed);
        let mut body = chat(seed);
        body["stream"] = (seed % 2 == 1).into();
        let (text, experiences) = world.call(2 * seed, "/v1/chat/completions", &body).await;
        check(&experiences[0], &completion, 0);
        if seed % 2 == 0 {
            let response: Value = serde_json::from_str(&text).unwrap();
            let content = &response["choices"][0]["message"]["content"];
            assert_eq!(*content, vocabulary.decode(&completion.tokens));
        }
        let mut body =
            json!({ "prompt": question((12, 34)), "seed": seed, "max_tokens": 5, "n": 3 });
        body["stream"] = (seed % 2 == 1).into();
        let (_, experiences) = world.call(2 * seed + 1, "/v1/completions", &body).await;
        assert_eq!(experiences.len(), 3);
        for (experience, seed) in experiences.iter().zip(seed..) {
            check(experience, &expected(&weights, 1.0, seed), 0);
        }
    }
    assert_eq!(world.server.counts().left, 0);
    assert_eq!(world.server.counts().answered, 12);
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_weights_change_completions_and_labels() {
    let (weights, _) = arithmetic();
    let other = ModelWeights::random(weights.shape(), 9);
    let folder = tempfile::tempdir().unwrap();
    other.save(&folder.path().join("model.safetensors")).unwrap();
    let world = World::new(0).await;
    let mut greedy = chat(0);
    greedy["temperature"] = 0.into();
    let (_, experiences) = world.call(0, "/v1/chat/completions", &greedy).await;
    check(&experiences[0], &expected(&weights, 0.0, 0), 0);

    for (round, in_flight) in [(1, InFlightPolicy::Keep), (2, InFlightPolicy::Abort)] {
        world.update(round + 6, folder.path(), in_flight).await;
        assert_eq!(&*world.server.version(), (round + 6).to_string());
        let (_, experiences) = world.call(round, "/v1/chat/completions", &greedy).await;
        check(&experiences[0], &expected(&other, 0.0, 0), round + 6);
    }
    assert_eq!(world.server.counts().updates, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_one_conversation_are_one_experience() {
    let world = World::new(0).await;
    let handle = world.gateway.handle();
    let key = handle.open(1, 0, 1).remove(0);
    let (_, vocabulary) = arithmetic();
    let mut messages = vec![json!({ "role": "user", "content": "12+34=" })];
    let (mut tokens, mut own) = (prompt(&vocabulary, (12, 34)), Vec::new());
    for (turn, question) in ["+01=", "+02="].into_iter().enumerate() {
        if turn > 0 {
            // A completion cut off by length gets an end token when it is sent back.
            let mark = (tokens.last() != Some(&Vocabulary::END)).then_some(Vocabulary::END);
            let before = tokens.len();
            tokens.extend(mark.into_iter().chain(vocabulary.encode("+01=").unwrap()));
            own.extend(vec![false; tokens.len() - before]);
        }
        let seed = turn as u64;
        let request = request(tokens.clone(), 1.0, seed);
        let completion =
            Generator::new(TinyServerOptions::default().weights).complete(vec![request]).remove(0);
        tokens.extend(&completion.tokens);
        own.extend(vec![true; completion.tokens.len()]);
        let body =
            json!({ "model": "trained", "messages": messages, "max_tokens": 5, "seed": seed });
        let url = world.gateway.url();
        let (status, text) = http(url, "POST", "/v1/chat/completions", &key, &body).await;
        assert_eq!(status, 200, "{text}");
        let response: Value = serde_json::from_str(&text).unwrap();
        messages.push(response["choices"][0]["message"].clone());
        messages.push(json!({ "role": "user", "content": question }));
    }
    let (payload, turns) = handle.experiences(RunRef { attempt: 1, run: 0 }, 0).unwrap();
    let experiences = deserialize_many(payload.into()).unwrap();
    assert_eq!((turns, experiences.len()), (2, 1), "{experiences:?}");
    let recorded: Vec<u32> = experiences[0].tokens.iter().map(i32::cast_unsigned).collect();
    assert_eq!((recorded, experiences[0].prompt_length), (tokens, 7));
    assert_eq!(experiences[0].action_mask.as_ref().unwrap().to_vec(), own);
}
