//! A way to the server that can be cut at a chosen moment.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// No thread panics while it holds a lock.
const WHOLE: &str = "a lock that nobody broke";

/// What happens to the next connection that gives the occasion; then the way is free again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plan {
    /// The way is free.
    Free,
    /// Cut when the client has sent so many bytes from now on.
    CutAfter(usize),
    /// Cut when the client wants to commit, before the server hears of it.
    CutBeforeCommit,
    /// Cut when the server has committed, before the client hears of it.
    CutAfterCommit,
    /// Let the server's next answers vanish, and the connection stand.
    Silence,
    CutNow,
}

/// A port that leads to the server.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    plan: Arc<Mutex<Plan>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn to(server: u16) -> Self {
        let socket = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback socket");
        let port = socket.local_addr().expect("a loopback socket").port();
        let (plan, open) = (Arc::new(Mutex::new(Plan::Free)), Arc::<Mutex<Vec<_>>>::default());
        let (shared, list) = (Arc::clone(&plan), Arc::clone(&open));
        // The thread ends with the process: nobody waits for it.
        thread::spawn(move || {
            for client in socket.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", server)).expect("a loopback socket");
                client.set_nodelay(true).expect("a loopback socket");
                server.set_nodelay(true).expect("a loopback socket");
                list.lock().expect(WHOLE).push(client.try_clone().expect("a loopback socket"));
                let way = Arc::new(ProxyDirection {
                    plan: Arc::clone(&shared),
                    mute: AtomicBool::new(false),
                });
                let ends = (
                    client.try_clone().expect("a loopback socket"),
                    server.try_clone().expect("a loopback socket"),
                );
                let back = Arc::clone(&way);
                thread::spawn(move || way.forth(ends.0, ends.1));
                thread::spawn(move || back.back(server, client));
            }
        });
        Self { port, plan, open }
    }

    /// Chooses what happens next.
    pub(crate) fn plan(&self, plan: Plan) {
        if plan == Plan::CutNow {
            for stream in self.open.lock().expect(WHOLE).drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        } else {
            *self.plan.lock().expect(WHOLE) = plan;
        }
    }

    /// Tells whether the planned fault has happened.
    pub(crate) fn happened(&self) -> bool {
        *self.plan.lock().expect(WHOLE) == Plan::Free
    }
}

struct ProxyDirection {
    plan: Arc<Mutex<Plan>>,
    /// The server's answers end the connection, or vanish.
    mute: AtomicBool,
}

impl ProxyDirection {
    fn forth(&self, mut client: TcpStream, mut server: TcpStream) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            let mut sent = &buffer[..count];
            let mut plan = self.plan.lock().expect(WHOLE);
            let commit = sent.windows(7).any(|window| window == b"COMMIT\0");
            let mut cut = false;
            match *plan {
                Plan::CutAfter(left) if count >= left => {
                    sent = &sent[..left];
                    cut = true;
                }
                Plan::CutAfter(left) => *plan = Plan::CutAfter(left - count),
                Plan::CutBeforeCommit if commit => {
                    sent = &[];
                    cut = true;
                }
                Plan::CutAfterCommit if commit => {
                    self.mute.store(true, Ordering::SeqCst);
                    *plan = Plan::Free;
                }
                _ => {}
            }
            if cut {
                *plan = Plan::Free;
            }
            drop(plan);
            if server.write_all(sent).is_err() || cut {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
    }

    fn back(&self, mut server: TcpStream, mut client: TcpStream) {
        let mut buffer = vec![0; 1 << 16];
        let mut silent = false;
        while let Ok(count @ 1..) = server.read(&mut buffer) {
            if self.mute.load(Ordering::SeqCst) {
                break;
            }
            let mut plan = self.plan.lock().expect(WHOLE);
            if *plan == Plan::Silence {
                *plan = Plan::Free;
                silent = true;
            }
            drop(plan);
            if !silent && client.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}
