//! TLS of listeners and of their clients: version 1.3 alone.
//!
//! A listener has the certificate of the operator, or a self-signed one of the job. Clients know
//! its fingerprint from the address that the job leaves in its folder or sends with the launch of
//! a worker, and accept no other certificate.

mod accept;
mod identity;
mod pin;

pub(crate) use self::accept::accept;
pub use self::identity::{TlsError, TlsIdentity};
pub use self::pin::{
    FingerprintMismatch, TlsConnectError, TlsUrlError, client_config, connect, connect_http1,
    split_url,
};
