//! A TCP proxy to the server that fails at a chosen moment.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Fault of the next matching connection; afterwards the proxy forwards again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Plan {
    Free,
    /// Cut after the client has sent this many bytes.
    CutAfter(usize),
    /// Cut before the commit reaches the server.
    CutBeforeCommit,
    /// Cut before the response to the commit reaches the client.
    CutAfterCommit,
    /// Drop the next responses and keep the connection open.
    Silence,
    CutNow,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    plan: Arc<Mutex<Plan>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn to(server: u16) -> Self {
        let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (plan, open) = (Arc::new(Mutex::new(Plan::Free)), Arc::<Mutex<Vec<_>>>::default());
        let (shared, list) = (Arc::clone(&plan), Arc::clone(&open));
        thread::spawn(move || {
            for client in socket.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                list.lock().unwrap().push(client.try_clone().unwrap());
                let way = Arc::new(ProxyDirection {
                    plan: Arc::clone(&shared),
                    mute: AtomicBool::new(false),
                });
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let back = Arc::clone(&way);
                thread::spawn(move || way.forth(ends.0, ends.1));
                thread::spawn(move || back.back(server, client));
            }
        });
        Self { port, plan, open }
    }

    pub(crate) fn plan(&self, plan: Plan) {
        if plan == Plan::CutNow {
            for stream in self.open.lock().unwrap().drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        } else {
            *self.plan.lock().unwrap() = plan;
        }
    }

    /// Returns whether the planned fault has happened.
    pub(crate) fn happened(&self) -> bool {
        *self.plan.lock().unwrap() == Plan::Free
    }
}

struct ProxyDirection {
    plan: Arc<Mutex<Plan>>,
    /// Responses of the server end the connection.
    mute: AtomicBool,
}

impl ProxyDirection {
    fn forth(&self, mut client: TcpStream, mut server: TcpStream) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            let mut sent = &buffer[..count];
            let mut plan = self.plan.lock().unwrap();
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
            let mut plan = self.plan.lock().unwrap();
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
