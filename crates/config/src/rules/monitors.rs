//! Rules of `monitor`.

use super::Check;
use crate::MonitorType;

impl Check<'_> {
    pub(super) fn monitors(&mut self) {
        let monitor = &self.given.monitor;
        let types = &monitor.monitor_type;
        if types.len() > 1 && types.contains(&MonitorType::None) {
            self.add_problem(
                "monitor.monitor_type",
                "`none` is given together with others",
                "remove `none` or the others",
            );
        }
        let mut sorted = types.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() < types.len() {
            let hint = "name every monitor once";
            self.add_problem("monitor.monitor_type", "a monitor is named twice", hint);
        }
        if types.len() > 1 && !monitor.monitor_args.is_empty() && !monitor.is_by_name() {
            self.add_problem(
                "monitor.monitor_args",
                "the arguments name no monitor, and there are several",
                "give them by name: `monitor_args: {wandb: {…}, mlflow: {…}}`",
            );
        }
        if let Some(address) = &monitor.prometheus
            && address.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err())
        {
            let message = format!("`{address}` is not an address of the form host:port");
            self.add_problem(
                "monitor.prometheus",
                message,
                "write an address such as `127.0.0.1:9464`",
            );
        }
    }
}
