//! Dependencies between the top-level modules of a crate, from the `crate::` paths of its source.

use std::collections::{BTreeMap, BTreeSet};

use crate::debt;
use crate::source::without_comments;
use crate::tree::Tree;

/// Crates with layers, lowest first: a module uses modules of its own and lower layers. Every
/// top-level module is in one layer.
const LAYERS: &[(&str, &[&[&str]])] =
    &[("crates/data", &[&["sample", "arrow"], &["buffer"], &["pipeline", "reader"]])];

/// Top-level modules of a crate and those that each of them uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

pub(crate) fn no_cycles(tree: &Tree) -> Vec<String> {
    let found = cycles(tree);
    let listed: Vec<(String, String)> =
        debt::listed(tree, "cycle").into_iter().map(|(a, b)| (a.into(), b.into())).collect();
    let new = found.iter().filter(|cycle| !listed.contains(cycle)).map(|(folder, cycle)| {
        format!("{folder}/src: modules that depend on each other: {cycle}; cut the cycle")
    });
    let gone = listed.iter().filter(|cycle| !found.contains(cycle));
    let gone = gone.map(|(folder, cycle)| {
        format!("{}: remove the line, it is no longer true: cycle {folder} {cycle}", debt::PATH)
    });
    new.chain(gone).collect()
}

pub(crate) fn layers(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    let graphs = graphs(tree);
    for (folder, layers) in LAYERS {
        let Some(graph) = graphs.get(*folder) else { continue };
        let level = |module: &str| layers.iter().position(|layer| layer.contains(&module));
        for (module, uses) in graph {
            let Some(own) = level(module) else {
                found.push(format!("{folder}/src: `{module}` is in no layer of tidy/modules.rs"));
                continue;
            };
            for used in uses.iter().filter(|used| level(used).is_some_and(|it| it > own)) {
                found.push(format!("{folder}/src: `{module}` uses `{used}` of a higher layer"));
            }
        }
    }
    found
}

/// Returns the crates and the names of modules that depend on each other.
pub(crate) fn cycles(tree: &Tree) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (folder, graph) in graphs(tree) {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            graph.keys().map(|module| (module.as_str(), reachable(&graph, module))).collect();
        let mut groups = BTreeSet::new();
        for (module, others) in &reached {
            // Modules that reach each other are one group.
            let group = others.iter().filter(|other| reached[*other].contains(module));
            let group: Vec<&str> = group.copied().collect();
            if group.len() > 1 {
                groups.insert(group.join(" "));
            }
        }
        found.extend(groups.into_iter().map(|group| (folder.clone(), group)));
    }
    found
}

fn reachable<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(module) = open.pop() {
        for next in &graph[module] {
            if reached.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    reached
}

fn graphs(tree: &Tree) -> BTreeMap<String, Graph> {
    let mut graphs: BTreeMap<String, Graph> = BTreeMap::new();
    for file in tree.with_extension(&["rs"]) {
        let Some((folder, path)) = file.in_source() else { continue };
        let module = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if module == "lib" || module == "main" {
            continue;
        }
        let uses = graphs.entry(folder.into()).or_default().entry(module.into()).or_default();
        uses.extend(used(&without_comments(&file.text)).into_iter().filter(|it| it != module));
    }
    for graph in graphs.values_mut() {
        let modules: BTreeSet<String> = graph.keys().cloned().collect();
        graph.values_mut().for_each(|uses| uses.retain(|used| modules.contains(used)));
    }
    graphs
}

/// Returns the names that follow `crate::`, also those in braces.
fn used(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, path) in code.match_indices("crate::") {
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            None => names.extend(name(rest)),
            Some(list) => {
                let mut depth = 0_usize;
                let mut begins = true;
                for (at, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => begins = true,
                        c if begins && !c.is_whitespace() => {
                            begins = false;
                            names.extend(name(&list[at..]));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

/// Returns the name that a text begins with.
fn name(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

#[test]
fn paths_are_found_with_and_without_braces() {
    let code = "use crate::a::B;\nuse crate::{c::{self, X}, d,\n e::Y};\nfn f() { crate::g::h() }";
    let found: Vec<String> = used(code).into_iter().collect();
    assert_eq!(found, ["a", "c", "d", "e", "g"]);
}
