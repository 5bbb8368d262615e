//! Trace headers for servers: the client's, or the observer's.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{HeaderMap, Method};
use rollway_base::ServerKind;
use rollway_gateway::gateway::{CallEnded, CallObserver, Gateway};
use rollway_gateway::keys::RunRef;
use rollway_gateway::models::ServerSpec;
use serde_json::json;

use super::help::{MODEL, Run, client, options, says};

/// Traces the runs of attempt 7.
#[derive(Debug, Default)]
struct Tracer;

impl CallObserver for Tracer {
    fn began(&self, _: RunRef, _: u64, _: Option<&str>) {}

    fn traceparent(&self, run: RunRef, call: u64) -> Option<String> {
        (run.attempt == 7).then(|| format!("00-{:032x}-{:016x}-01", run.attempt, call))
    }

    fn sent(&self, _: RunRef, _: u64, _: &str) {}

    fn ended(&self, _: RunRef, _: u64, _: CallEnded) {}
}

#[tokio::test]
async fn a_call_carries_the_trace_of_its_client_or_of_its_run() {
    let received: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
    let keep = Arc::clone(&received);
    let answer = move |method: Method, headers: HeaderMap| async move {
        if method == Method::GET {
            return rollway_net::JsonBody(json!({ "object": "list", "data": [{ "id": MODEL }] }));
        }
        keep.lock().unwrap().push(headers);
        let choice = json!({
            "index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"},
        });
        rollway_net::JsonBody(
            json!({ "id": "1", "object": "chat.completion", "choices": [choice] }),
        )
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut options = options();
    options.watcher = Some(Arc::new(Tracer));
    let spec = ServerSpec::new(MODEL, false, ServerKind::Openai, url);
    let gateway = Gateway::start(options, vec![spec]).await.unwrap();
    let run = |attempt| Run {
        url: gateway.url().to_owned(),
        client: client(),
        key: gateway.handle().open(attempt, 0, 1).remove(0),
        name: RunRef { attempt, run: 0 },
    };

    let own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = run(7);
    let with_own = traced.chat(&says("a")).header("traceparent", own).header("tracestate", "a=1");
    let calls = [traced.chat(&says("b")), with_own, run(8).chat(&says("c"))];
    for call in calls {
        assert_eq!(call.send().await.unwrap().status(), 200);
    }
    let received = received.lock().unwrap();
    let header = |call: usize, name: &str| {
        received[call].get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    let ours = header(0, "traceparent").unwrap();
    assert!(ours.starts_with("00-00000000000000000000000000000007-"), "{ours}");
    assert_eq!(header(1, "traceparent").as_deref(), Some(own));
    assert_eq!(header(1, "tracestate").as_deref(), Some("a=1"));
    assert_eq!(header(2, "traceparent"), None);
}
