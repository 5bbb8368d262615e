//! Conversion of OpenMetrics to the older text format: full names of counters; no units, infos and
//! end marker.

pub(super) fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // The suffix of a name is known with its type, which follows the help.
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { continue };
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            if let Some((of, text)) = help.take()
                && of == name
            {
                out.push_str(&format!("# HELP {name}{suffix} {text}\n"));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_get_their_older_names() {
        let text = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                    a_seconds_total 1.0\n# HELP b B.\n# TYPE b info\nb_info{x=\"1\"} 1\n\
                    # HELP c C.\n# TYPE c gauge\nc 2\n# EOF\n";
        let older = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\n\
                     a_seconds_total 1.0\n# HELP b_info B.\n# TYPE b_info gauge\n\
                     b_info{x=\"1\"} 1\n# HELP c C.\n# TYPE c gauge\nc 2\n";
        assert_eq!(classic(text), older);
    }
}
