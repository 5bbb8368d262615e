//! Calls are forwarded and recorded.

use rollway_mock_server::MockServerOptions;
use serde_json::json;

use super::help::{ADMIN, MODEL, World, events, options, read, says, streams, text_of};

#[tokio::test]
async fn a_full_response_is_forwarded_and_recorded() {
    let world = World::new().await;
    let run = world.open(1);
    let response = run.send(&says("hello")).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.headers()["x-rollway-model-version"], "0");
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let (status, answer) = read(response).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["id"], id);
    assert_eq!(answer["model"], MODEL);
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["created"].is_u64());
    assert!(answer["prompt_token_ids"].is_null(), "only the gateway asked for it");
    assert!(answer["choices"][0]["token_ids"].is_null(), "only the gateway asked for it");

    let records = world.control().records();
    let recorded_choice = &records[0].choices[0];
    let experiences = world.experiences(&run);
    assert_eq!(experiences.len(), 1);
    let experience = &experiences[0];
    let tokens: Vec<i32> = experience.tokens.iter().collect();
    assert_eq!(&tokens[..experience.prompt_length], records[0].prompts[0]);
    let response: Vec<i32> = recorded_choice.tokens.iter().map(|token| token.id).collect();
    assert_eq!(&tokens[experience.prompt_length..], response);
    let logprobs: Vec<f32> = experience.logprobs.as_ref().unwrap().iter().collect();
    assert_eq!(
        logprobs,
        recorded_choice.tokens.iter().map(|token| token.logprob).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_stream_is_forwarded_and_recorded_alike() {
    let world = World::new().await;
    let (whole, streamed) = (world.open(1), world.open(2));
    let (_, answer) = whole.call(&says("hello")).await;
    let response = streamed.send(&streams("hello")).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let events = events(&response.text().await.unwrap());
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert_eq!(text_of(&events), answer["choices"][0]["message"]["content"].as_str().unwrap());
    let [whole, streamed] = [world.experiences(&whole), world.experiences(&streamed)];
    assert_eq!(whole[0].tokens, streamed[0].tokens);
    assert_eq!(whole[0].logprobs, streamed[0].logprobs);
    assert_eq!(whole[0].model_versions, streamed[0].model_versions);
}

#[tokio::test]
async fn a_run_fetches_its_experiences_from_any_turn_on() {
    let world = World::new().await;
    let run = world.open(1);
    let path = run.url.clone() + "/rollway/v1/run/experiences";
    for (turns, word) in [(0, "a"), (1, "b"), (2, "c")] {
        let request = run.client.get(format!("{path}?since={turns}")).bearer_auth(&run.key);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["x-rollway-turns"], turns.to_string());
        run.text(&says(word)).await;
    }
    let request = run.client.get(format!("{path}?since=1")).bearer_auth(&run.key);
    let payload = request.send().await.unwrap().bytes().await.unwrap();
    let newer = rollway_experience::deserialize_many(payload).unwrap();
    assert_eq!(newer.len(), 2);
    assert_eq!(world.experiences(&run).len(), 3);
}

#[tokio::test]
async fn completions_take_texts_and_tokens() {
    let world = World::new().await;
    let run = world.open(1);
    for prompt in [json!("some text"), json!([5, 6, 7])] {
        let body = json!({ "prompt": prompt, "max_tokens": 5 });
        let (status, answer) = read(run.post("/v1/completions", &body).send().await.unwrap()).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["object"], "text_completion");
    }
    let experiences = world.experiences(&run);
    assert_eq!(experiences.len(), 2);
    assert_eq!(experiences[1].tokens.iter().take(3).collect::<Vec<_>>(), [5, 6, 7]);
}

#[tokio::test]
async fn models_are_listed_by_name() {
    let world = World::new().await;
    let run = world.open(1);
    for key in [ADMIN, &run.key] {
        let get = |path: &str| run.client.get(run.url.clone() + path).bearer_auth(key).send();
        let (status, models) = read(get("/v1/models").await.unwrap()).await;
        assert_eq!((status, &models["data"][0]["id"]), (200, &json!(MODEL)));
        let (status, model) = read(get("/v1/models/trained").await.unwrap()).await;
        assert_eq!((status, &model["object"]), (200, &json!("model")));
        assert_eq!(read(get("/v1/models/other").await.unwrap()).await.0, 404);
    }
}

#[tokio::test]
async fn sampling_arguments_are_defaults_or_forced_for_the_trained_model() {
    for (force, expected) in [(false, [0.9, 0.5]), (true, [0.25, 0.5])] {
        let mut options = options();
        options.sampling =
            json!({ "temperature": 0.25, "top_p": 0.5 }).as_object().unwrap().clone();
        options.force_sampling = force;
        let world = World::with(options, vec![MockServerOptions::default()]).await;
        let mut body = says("hello");
        body["temperature"] = json!(0.9);
        assert_eq!(world.open(1).chat(&body).send().await.unwrap().status(), 200);
        let asked = world.control().records()[0].body.clone();
        assert_eq!(
            [&asked["temperature"], &asked["top_p"]],
            expected.map(|it| json!(it)).each_ref()
        );
    }
}
