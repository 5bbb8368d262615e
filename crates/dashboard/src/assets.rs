//! The pages themselves, embedded: no build step, nothing that is downloaded.

/// A file of the pages.
#[derive(Debug)]
pub(super) struct Asset {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// The page that all others are drawn into.
pub(super) const INDEX: &str = include_str!("assets/index.html");

/// The page for those who have no token.
pub(super) const ENTER: &str = include_str!("assets/enter.html");

macro_rules! asset {
    ($name:literal, $kind:expr) => {
        Asset { name: $name, kind: $kind, text: include_str!(concat!("assets/", $name)) }
    };
}

/// Everything that the pages ask for by name.
pub(super) const ASSETS: &[Asset] = &[
    asset!("api.js", SCRIPT),
    asset!("app.js", SCRIPT),
    asset!("base.css", STYLE),
    asset!("batches.js", SCRIPT),
    asset!("bias.js", SCRIPT),
    asset!("charts.js", SCRIPT),
    asset!("dialog.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("icon.svg", "image/svg+xml"),
    asset!("icons.js", SCRIPT),
    asset!("overview.js", SCRIPT),
    asset!("parts.css", STYLE),
    asset!("parts.js", SCRIPT),
    asset!("run.js", SCRIPT),
    asset!("runners.js", SCRIPT),
    asset!("runs.js", SCRIPT),
    asset!("store.js", SCRIPT),
    asset!("table.js", SCRIPT),
    asset!("theme.js", SCRIPT),
    asset!("timeline.js", SCRIPT),
    asset!("tokens.js", SCRIPT),
    asset!("views.css", STYLE),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_a_page_names_is_there_and_every_file_is_named() {
        let all: Vec<&str> = ASSETS.iter().map(|asset| asset.text).chain([INDEX, ENTER]).collect();
        for asset in ASSETS {
            let names = [format!("/assets/{}", asset.name), format!("\"./{}\"", asset.name)];
            let is_named = |text: &&str| names.iter().any(|name| text.contains(name));
            assert!(all.iter().any(is_named), "nobody asks for {}", asset.name);
        }
        for text in &all {
            let imports = text.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next());
            let links = text.split("\"/assets/").skip(1).filter_map(|rest| rest.split('"').next());
            for name in imports.chain(links) {
                assert!(ASSETS.iter().any(|asset| asset.name == name), "{name} is not embedded");
            }
        }
    }

    #[test]
    fn the_pages_need_nothing_from_elsewhere() {
        for asset in ASSETS {
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("://"), "{} names a foreign host", asset.name);
        }
        assert!(!INDEX.contains("://") && !ENTER.contains("://"));
        assert!(!INDEX.contains("<style") && !INDEX.contains(" style=") && !INDEX.contains(" on"));
    }
}
