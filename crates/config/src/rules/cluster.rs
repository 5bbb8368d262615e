//! What must fit together for workers on other machines.

use super::super::cluster::{ClusterBackend, ClusterConfig};
use super::Check;

impl Check<'_> {
    pub(super) fn cluster(&mut self) {
        let cluster = self.given.cluster.clone();
        if let Some(listen) = &cluster.listen
            && ClusterConfig::host_and_port(listen).is_none()
        {
            let what = format!("{listen:?} is not where anybody could be reached");
            let hint =
                "write a host, or host:port, such as 10.0.0.5:7000; a bare port is 0.0.0.0:7000";
            self.wrong("cluster.listen", what, hint);
        }
        if cluster.backend == ClusterBackend::Local {
            for (key, is_set) in [
                ("cluster.listen", cluster.listen.is_some()),
                ("cluster.gateway_port", cluster.gateway_port.is_some()),
                ("cluster.secret_file", cluster.secret_file.is_some()),
            ] {
                if is_set {
                    let what = "has no effect: workers are processes on this machine";
                    self.warn(key, what, "set `cluster.backend` to ray or manual, or leave it out");
                }
            }
        }
    }
}
