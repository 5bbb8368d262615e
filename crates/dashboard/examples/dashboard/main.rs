//! Serves the dashboard of a simulated job, for screenshots, tests and measurements.
//!
//! ```text
//! cargo run -p rollway-dashboard --example dashboard -- [--tasks 100000] [--rate 1000]
//!     [--listen 127.0.0.1:0] [--token …] [--state running|waiting|finished|failed|empty]
//!     [--still]
//! ```
//!
//! The same arguments give the same job. `--rate` is the number of events per second; `--still`
//! stops its clock. Prints the address, and ends with its standard input.

mod demo;
mod detail;
mod groups;
mod numbers;
mod reports;
mod runs;

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use rollway_base::Secret;
use rollway_base::tls::TlsOptions;
use rollway_dashboard::{Dashboard, DashboardOptions};
use rollway_net::{ListenerKind, ListenerLimits};

use self::demo::Demo;

#[derive(Clone, Debug)]
struct Args {
    tasks: u32,
    rate: u32,
    listen: String,
    token: Option<String>,
    state: String,
    still: bool,
}

fn args() -> Args {
    let mut args = Args {
        tasks: 100_000,
        rate: 0,
        listen: "127.0.0.1:0".to_owned(),
        token: None,
        state: "running".to_owned(),
        still: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(option) = given.next() {
        let mut value = || given.next().expect("this option has a value");
        match option.as_str() {
            "--tasks" => args.tasks = value().parse().expect("a number of tasks"),
            "--rate" => args.rate = value().parse().expect("a number of events"),
            "--listen" => args.listen = value(),
            "--token" => args.token = Some(value()),
            "--state" => args.state = value(),
            "--still" => args.still = true,
            other => panic!("unknown option: {other}"),
        }
    }
    args
}

#[tokio::main]
async fn main() {
    let args = args();
    let demo = Arc::new(Demo::new(&args));
    if args.rate > 0 {
        let demo = Arc::clone(&demo);
        std::thread::spawn(move || demo.keep_going(args.rate));
    }
    let options = DashboardOptions {
        listen: args.listen,
        limits: ListenerLimits::of(ListenerKind::Dashboard),
        tls: TlsOptions::off(),
        token: args.token.map(|token| Secret::new(token).expect("the token has letters")),
        view: demo,
        metrics: None,
    };
    let dashboard = Dashboard::open(options).await.expect("the address is free");
    let mut out = io::stdout();
    writeln!(out, "{}", dashboard.address()).expect("stdout is open");
    out.flush().expect("stdout is open");
    let ended = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
    let _ = ended.await;
}
