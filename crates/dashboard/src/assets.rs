//! Files of the pages, embedded: no build step, no downloads.

/// A file below `/assets`.
#[derive(Debug)]
pub(super) struct Asset {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Frame of all pages.
pub(super) const INDEX: &str = include_str!("assets/index.html");

/// Page for requests without token.
pub(super) const LOGIN: &str = include_str!("assets/login.html");

/// Embeds a file by name and extension.
macro_rules! asset {
    ($name:literal, $extension:literal, $kind:expr) => {
        Asset {
            name: concat!($name, ".", $extension),
            kind: $kind,
            text: include_str!(concat!("assets/", $name, ".", $extension)),
        }
    };
}

/// Embeds the pages, and generates the module that imports them in the order of the menu.
macro_rules! pages {
    ($($name:literal),*) => {
        const PAGES: &[Asset] = &[
            $(asset!($name, "js", SCRIPT),)*
            Asset {
                name: "pages.js",
                kind: SCRIPT,
                text: concat!(
                    $("import * as ", $name, " from \"./", $name, ".js\";\n",)*
                    "export default [", $($name, ", ",)* "];\n"
                ),
            },
        ];
    };
}

pages!(
    "overview", "timeline", "batches", "runners", "servers", "runs", "metrics", "bias", "config"
);

const FILES: &[Asset] = &[
    asset!("api", "js", SCRIPT),
    asset!("app", "js", SCRIPT),
    asset!("base", "css", STYLE),
    asset!("charts", "js", SCRIPT),
    asset!("components", "css", STYLE),
    asset!("components", "js", SCRIPT),
    asset!("dialog", "js", SCRIPT),
    asset!("dom", "js", SCRIPT),
    asset!("format", "js", SCRIPT),
    asset!("icon", "svg", "image/svg+xml"),
    asset!("icons", "js", SCRIPT),
    asset!("run", "js", SCRIPT),
    asset!("store", "js", SCRIPT),
    asset!("table", "js", SCRIPT),
    asset!("task", "js", SCRIPT),
    asset!("tasks", "js", SCRIPT),
    asset!("theme", "js", SCRIPT),
    asset!("tokens", "js", SCRIPT),
    asset!("views", "css", STYLE),
];

pub(super) fn assets() -> impl Iterator<Item = &'static Asset> {
    PAGES.iter().chain(FILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_files_are_embedded_and_embedded_files_are_imported() {
        let all: Vec<&str> = assets().map(|asset| asset.text).chain([INDEX, LOGIN]).collect();
        for asset in assets() {
            let names = [format!("/assets/{}", asset.name), format!("\"./{}\"", asset.name)];
            let is_named = |text: &&str| names.iter().any(|name| text.contains(name));
            assert!(all.iter().any(is_named), "{} is not imported", asset.name);
        }
        for text in &all {
            let imports = text.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next());
            let links = text.split("\"/assets/").skip(1).filter_map(|rest| rest.split('"').next());
            for name in imports.chain(links) {
                assert!(assets().any(|asset| asset.name == name), "{name} is not embedded");
            }
        }
    }

    #[test]
    fn pages_name_no_other_host() {
        for asset in assets() {
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("://"), "{} names a foreign host", asset.name);
        }
        assert!(!INDEX.contains("://") && !LOGIN.contains("://"));
        assert!(!INDEX.contains("<style") && !INDEX.contains(" style=") && !INDEX.contains(" on"));
    }
}
