//! What somebody may have meant.

/// Returns the name that was probably meant, if one is near enough.
pub(super) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = |name: &'a str| {
        let edits = strsim::osa_distance(word, name);
        let longest = word.chars().count().max(name.chars().count());
        (edits <= (longest / 3).max(1)).then_some((edits, name))
    };
    names.filter_map(near).min().map(|(_, name)| name)
}
