//! Environment variables in values: `${oc.env:NAME}`, `${oc.env:NAME,default}`, and the same with
//! `env` for `oc.env`.

use super::error::ConfigProblem;

/// Replaces the environment variables in a text.
pub(super) fn substitute(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, ConfigProblem> {
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        done.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let Some(end) = inner.find('}') else {
            // Not a variable: regular expressions and prompts may contain `${`.
            done.push_str(&rest[start..]);
            return Ok(done);
        };
        let inner = &inner[..end];
        rest = &rest[start + 2 + end + 1..];
        let Some(call) = inner.strip_prefix("oc.env:").or_else(|| inner.strip_prefix("env:"))
        else {
            if is_reference(inner) {
                let message =
                    format!("`${{{inner}}}` refers to another key, which is not supported");
                let hint = "write the value out, or mark the other one `&name` and write `*name` \
                            here; environment variables are `${oc.env:NAME,default}`";
                return Err(ConfigProblem::new("", message).hint(hint));
            }
            done.push_str(&format!("${{{inner}}}"));
            continue;
        };
        let (name, default) = match call.split_once(',') {
            Some((name, default)) => (name.trim(), Some(default.trim())),
            None => (call.trim(), None),
        };
        match variable(name).or_else(|| default.map(str::to_owned)) {
            Some(value) => done.push_str(&value),
            None => {
                let message = format!("the environment variable `{name}` is not set");
                let hint = format!("set it, or give a default: `${{oc.env:{name},value}}`");
                return Err(ConfigProblem::new("", message).hint(hint));
            }
        }
    }
    done.push_str(rest);
    Ok(done)
}

/// Tells whether the text inside `${}` looks like the path of a key.
fn is_reference(inner: &str) -> bool {
    inner.contains(['.', '_', ':'])
        && inner.chars().all(|c| c.is_ascii_alphanumeric() || "._:[]".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_root(text: &str) -> Result<String, String> {
        let variable = |name: &str| (name == "ROOT").then(|| "/data".to_owned());
        substitute(text, variable).map_err(|problem| problem.message)
    }

    #[test]
    fn variables_are_replaced() {
        for (text, replaced) in [
            ("plain", "plain"),
            ("${oc.env:ROOT}", "/data"),
            ("${oc.env:ROOT,./x}/tasks", "/data/tasks"),
            ("${oc.env:OTHER,./x}/${env:ROOT}", "./x//data"),
            ("${oc.env:OTHER,}", ""),
            ("a ${name} in a prompt", "a ${name} in a prompt"),
            ("costs ${", "costs ${"),
        ] {
            assert_eq!(with_root(text).as_deref(), Ok(replaced), "{text}");
        }
        assert!(with_root("${oc.env:OTHER}").is_err_and(|message| message.contains("`OTHER`")));
        assert!(
            with_root("${buffer.batch_size}").is_err_and(|message| message.contains("another key"))
        );
    }
}
