//! Readable difference between two lists of lines.

/// Returns all lines of both lists: common ones unmarked, those of `old` alone with `-`, those of
/// `new`
/// alone with `+`.
pub(super) fn lines(old: &[String], new: &[String]) -> String {
    // `common[i][j]`: length of the longest common subsequence of `old[i..]` and `new[j..]`.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut shown = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            shown.push(format!("    {}", old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            shown.push(format!("  - {}", old[i]));
            i += 1;
        } else {
            shown.push(format!("  + {}", new[j]));
            j += 1;
        }
    }
    shown.join("\n")
}

#[test]
fn common_lines_are_shown_once() {
    let split = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
    let shown = lines(&split("a b c e"), &split("a c d e"));
    assert_eq!(shown, "    a\n  - b\n    c\n  + d\n    e");
}
