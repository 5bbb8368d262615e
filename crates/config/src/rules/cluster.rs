//! Rules of `cluster.listen` and of keys for workers on other machines.

use super::super::cluster::{ClusterBackend, ClusterConfig};
use super::Check;

impl Check<'_> {
    pub(super) fn cluster(&mut self) {
        let cluster = self.given.cluster.clone();
        if let Some(listen) = &cluster.listen
            && ClusterConfig::host_and_port(listen).is_none()
        {
            let message = format!("{listen:?} is not a host or host:port");
            let hint = "write an address such as 10.0.0.5:7000; for a bare port write 0.0.0.0:7000";
            self.add_problem("cluster.listen", message, hint);
        }
        if cluster.backend == ClusterBackend::Local {
            for (key, is_set) in [
                ("cluster.listen", cluster.listen.is_some()),
                ("cluster.gateway_port", cluster.gateway_port.is_some()),
                ("cluster.secret_file", cluster.secret_file.is_some()),
            ] {
                if is_set {
                    let message = "has no effect: workers are processes on this machine";
                    self.warn(
                        key,
                        message,
                        "set `cluster.backend` to ray or manual, or remove the key",
                    );
                }
            }
        }
    }
}
