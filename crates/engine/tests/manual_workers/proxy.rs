//! A TCP proxy that can stop forwarding without closing connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: String,
    is_cut: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn to(engine: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_cut = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let cut = Arc::clone(&is_cut);
        tasks.spawn(async move {
            let mut ways = JoinSet::new();
            while let Ok((worker, _)) = listener.accept().await {
                let Ok(engine) = TcpStream::connect(&engine).await else { return };
                let (from_worker, to_worker) = worker.into_split();
                let (from_engine, to_engine) = engine.into_split();
                ways.spawn(carry(from_worker, to_engine, Arc::clone(&cut)));
                ways.spawn(carry(from_engine, to_worker, Arc::clone(&cut)));
            }
        });
        Self { address, is_cut, _tasks: tasks }
    }

    /// Stops forwarding.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
    }
}

async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    is_cut: Arc<AtomicBool>,
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if is_cut.load(Ordering::Acquire) {
            // Both ends stay open, as with an unplugged cable.
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    if is_cut.load(Ordering::Acquire) {
        std::future::pending::<()>().await;
    }
}
