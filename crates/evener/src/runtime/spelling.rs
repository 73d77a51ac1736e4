//! The word that a misspelt one was probably meant to be.

/// Likeness from which on one word is taken for a misspelling of another.
const LIKE: f64 = 0.8;

/// Whether one word may be a misspelling of the other.
pub(crate) fn is_like(a: &str, b: &str) -> bool {
    strsim::jaro_winkler(a, b) >= LIKE
}

/// The one of `names` that is most like `wrong`, if any is like it.
pub(crate) fn nearest<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let likeness = |name: &str| strsim::jaro_winkler(wrong, name);
    let nearest = names.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    nearest.filter(|name| is_like(wrong, name))
}

/// The most names that are told where none is like.
const NAMES: usize = 10;

/// Which of `names` may have been meant by one that isn't among them: the one like it, or those
/// there are.
pub(crate) fn meant<'n>(wrong: &str, names: impl Iterator<Item = &'n str> + Clone) -> String {
    if let Some(name) = nearest(wrong, names.clone()) {
        return format!("did you mean {name}?");
    }
    let listed: Vec<&str> = names.clone().take(NAMES).collect();
    let more = if names.count() > NAMES { ", ..." } else { "" };
    match listed.is_empty() {
        true => "there is none".to_owned(),
        false => format!("there are: {}{more}", listed.join(", ")),
    }
}
