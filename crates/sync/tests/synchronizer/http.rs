//! The HTTP API with a plain client.

use rollway_config::SyncMethod;
use serde_json::{Value, json};

use crate::world::{open, weights};

#[tokio::test]
async fn requests_without_the_secret_are_refused() {
    let job = tempfile::tempdir().unwrap();
    let host = open(job.path(), SyncMethod::Memory).await;
    let url = host.url();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let health = client.get(format!("{url}/health")).send().await.unwrap();
    assert_eq!(health.status(), 200);
    for (path, secret) in [("job", None), ("status", Some("wrong")), ("job", Some(""))] {
        let mut call = client.get(format!("{url}/v1/{path}"));
        if let Some(secret) = secret {
            call = call.header("authorization", format!("Bearer {secret}"));
        }
        assert_eq!(call.send().await.unwrap().status(), 401);
    }
    let card: Value = serde_json::from_slice(&std::fs::read(host.file()).unwrap()).unwrap();
    let bearer = format!("Bearer {}", card["secret"].as_str().unwrap());
    let post = async |path: &str, body: Value| -> Value {
        let call = client.post(format!("{url}/v1/{path}")).header("authorization", &bearer);
        let call = call.header("content-type", "application/json").body(body.to_string());
        serde_json::from_slice(&call.send().await.unwrap().bytes().await.unwrap()).unwrap()
    };
    let joined = post("join", json!({"role": "trainer", "name": "mine"})).await;
    let member = joined["member"].as_u64().unwrap();
    assert!(joined["heartbeat_timeout"].as_f64().unwrap() > 0.0);
    assert_eq!(post("heartbeat", json!({"member": member})).await, "known");
    let put = client.put(format!("{url}/v1/weights/1")).header("authorization", &bearer);
    assert_eq!(put.body(weights(1.0)).send().await.unwrap().status(), 200);
    assert_eq!(host.newest().await.unwrap().version, 1);
    let request = json!({"explorer": "e", "current": 0, "at_least": 1, "timeout": 5});
    let waited = post("wait", request).await;
    assert_eq!(waited["new"]["version"], 1);
    assert_eq!(post("trainer", json!({"member": member, "state": "training"})).await, true);
    post("leave", json!({"member": member, "reason": "failed", "message": "no luck"})).await;
    let request = json!({"explorer": "e", "current": 1, "at_least": 2, "timeout": 5});
    let waited = post("wait", request).await;
    assert!(waited["trainer_failed"].as_str().unwrap().contains("no luck"), "{waited}");
    let refused = post("leave", json!({"member": member, "reason": "badly"})).await;
    assert!(refused["error"].as_str().unwrap().contains("badly"), "{refused}");
}
