//! Rules of `tls`: certificate and key belong together, and metrics that other machines can read
//! are encrypted.

use rollway_base::net::{host_of, is_loopback};

use super::Check;
use crate::TlsModeConfig;

impl Check<'_> {
    pub(super) fn tls(&mut self) {
        let tls = self.given.tls.clone();
        let (given, missing) = match (tls.certificate.is_some(), tls.key.is_some()) {
            (true, false) => ("tls.certificate", "tls.key"),
            (false, true) => ("tls.key", "tls.certificate"),
            (true, true) | (false, false) => return,
        };
        let hint = "give both files, or none for a self-signed certificate of the job";
        self.add_problem(given, format!("`{missing}` is missing"), hint);
    }

    pub(super) fn metrics_listener(&mut self) {
        let Some(address) = &self.given.monitor.prometheus else { return };
        let is_clear = self.given.tls.mode == TlsModeConfig::Off && !is_loopback(host_of(address));
        if is_clear && !self.given.explorer.allow_unauthenticated_network {
            let message = format!(
                "{address} with `tls.mode: off`: every client that reaches this machine could \
                 read the metrics, in clear text"
            );
            let hint = "listen on 127.0.0.1, remove `tls.mode`, or set \
                        `explorer.allow_unauthenticated_network: true`";
            self.add_problem("monitor.prometheus", message, hint);
        }
    }
}
