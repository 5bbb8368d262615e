//! `rollway view`: the dashboard of a running and of an ended job.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::workspace::{Workspace, read};

const KEYS: [&str; 3] = ["buffer.total_steps=6", "buffer.batch_size=4", "explorer.eval_interval=6"];

/// `rollway view`, and the first line that it printed.
fn view(job: &Path) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollway"));
    let command = command.arg("view").arg(job).stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

/// Requests a path of the dashboard at a printed address.
fn request(address: &str, path: &str) -> Value {
    let (url, token) = address.split_once("/?token=").unwrap();
    let workspace = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(workspace).unwrap();
    write!(
        stream,
        "GET /api/{path} HTTP/1.1\r\nHost: {workspace}\r\nAuthorization: Bearer {token}\r\n\
         Connection: close\r\n\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{response}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn dashboard_of_a_job_is_live_and_later_recorded() {
    let workspace = Workspace::new();
    let mut running = workspace.start(&KEYS);
    let address = loop {
        let info = running.wait_for("info")["message"].as_str().unwrap().to_owned();
        if let Some(address) = info.strip_prefix("dashboard: ") {
            break address.to_owned();
        }
    };
    let address_file = workspace.job().join("dashboard.json");
    assert_eq!(std::fs::metadata(&address_file).unwrap().permissions().mode() & 0o777, 0o600);
    let (url, token) = ["url", "token"].map(|key| read(&address_file)[key].clone()).into();
    let (url, token) = (url.as_str().unwrap(), token.as_str().unwrap());
    // A log file has no token.
    let job = workspace.job();
    assert_eq!(address, format!("{url} (`rollway view {}` opens it)", job.display()));
    let address = format!("{url}/?token={token}");
    running.wait_for("step_done");
    let job = request(&address, "job");
    assert_eq!((&job["state"], &job["live"]), (&"running".into(), &true.into()), "{job:#}");
    assert!(request(&address, "runs")["total"].as_u64().unwrap() >= 4 * 8);
    // `rollway view` prints the same address.
    let (mut shown, found) = view(&workspace.job());
    assert_eq!((found, shown.wait().unwrap().code()), (address, Some(0)));

    running.signal("INT");
    assert_eq!(running.finish().0, Some(130));
    assert!(!address_file.exists());
    let (mut shown, address) = view(&workspace.job());
    let job = request(&address, "job");
    assert_eq!((&job["state"], &job["live"]), (&"stopped".into(), &false.into()), "{job:#}");
    assert!(!job.to_string().contains("token="), "{job:#}");
    let page = request(&address, "runs?state=succeeded&kind=train&limit=8");
    let details: Vec<Value> = page["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| {
            let batch = run["batch"].as_str().unwrap();
            request(&address, &format!("runs/{batch}/{}/{}", run["task"], run["run"]))
        })
        .collect();
    assert!(details.iter().all(|run| run["attempts"][0]["outcome"] == "succeeded"), "{details:#?}");
    let has_calls = |run: &Value| run["attempts"][0]["calls"][0]["status"] == 200;
    assert!(details.iter().any(has_calls), "{details:#?}");
    let sent = Command::new("kill").args(["-s", "INT", &shown.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert_eq!(shown.wait().unwrap().code(), Some(0));
}

#[test]
fn folder_without_a_job_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("nowhere")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollway"));
        let ran = command.arg("view").arg(&path).output().unwrap();
        assert_eq!(ran.status.code(), Some(2));
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert!(stderr.contains(&*path.to_string_lossy()) && stderr.contains("folder"), "{stderr}");
    }
}

#[test]
fn job_runs_without_a_dashboard_if_the_port_is_busy() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("dashboard.listen={}", listener.local_addr().unwrap());
    let workspace = Workspace::new();
    let keys = ["buffer.total_steps=1", "buffer.batch_size=2", "explorer.eval_interval=9", &listen];
    let ran = workspace.run("run", &keys);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("the job continues without it"), "{}", ran.stderr);
}
