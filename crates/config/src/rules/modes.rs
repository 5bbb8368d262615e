//! Keys that have an effect in one mode only.

use super::{Check, pointer};
use crate::{Config, Mode};

/// Keys and sections, each with the mode that reads it.
const MODE_KEYS: [(&str, Mode); 10] = [
    ("simulation", Mode::Simulate),
    ("explorer.bench_on_latest_checkpoint", Mode::Bench),
    ("explorer.proxy_port", Mode::Serve),
    ("explorer.listen_address", Mode::Serve),
    ("explorer.authentication", Mode::Serve),
    ("explorer.allow_unauthenticated_network", Mode::Serve),
    ("explorer.proxy_key_env", Mode::Serve),
    ("explorer.service_status_check_interval", Mode::Serve),
    ("explorer.db_url", Mode::Serve),
    ("explorer.serve_retention", Mode::Serve),
];

impl Check<'_> {
    /// Warns about values other than the default that the mode does not read.
    pub(super) fn mode_keys(&mut self) {
        let (mode, default) = (self.given.mode, Config::default().to_value());
        for (key, reader) in MODE_KEYS {
            if reader != mode && self.current(key) != default.pointer(&pointer(key)) {
                let message = format!("has no effect in mode `{}`", mode.name());
                let note = format!("only mode `{}` reads it", reader.name());
                self.warn(key, message, &note);
            }
        }
    }
}
