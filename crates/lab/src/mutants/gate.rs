//! Combines all changes of a source file in one text.
//!
//! The body of a changed function becomes `{ if crate::mutant::is(17) { changed } else { original }
//! }`, and the rest of the file stays unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proc_macro2::Span;
use syn::visit::Visit;
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

/// Position of a function with a body. Nested functions belong to the outer one.
#[derive(Debug)]
struct Function {
    /// Bytes from the keyword `fn` to the end of the body.
    range: Range<usize>,
    /// Bytes of the body, with both braces.
    body: Range<usize>,
    is_const: bool,
}

/// Returns the functions of a source in the order of the text; `None` if the source does not parse.
fn functions(source: &str) -> Option<Vec<Function>> {
    #[derive(Default)]
    struct Functions(Vec<Function>);
    impl Functions {
        fn add(&mut self, signature: &Signature, block: &Block) {
            let body = block.brace_token.span;
            let body = bytes(body.open()).start..bytes(body.close()).end;
            let range = bytes(signature.fn_token.span).start..body.end;
            self.0.push(Function { range, body, is_const: signature.constness.is_some() });
        }
    }
    impl<'ast> Visit<'ast> for Functions {
        fn visit_item_fn(&mut self, function: &'ast ItemFn) {
            self.add(&function.sig, &function.block);
        }
        fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
            self.add(&function.sig, &function.block);
        }
        fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
            if let Some(block) = &function.default {
                self.add(&function.sig, block);
            }
        }
    }
    let file = syn::parse_str::<syn::File>(source).ok()?;
    let mut found = Functions::default();
    found.visit_file(&file);
    found.0.sort_by_key(|function| function.body.start);
    Some(found.0)
}

fn bytes(span: Span) -> Range<usize> {
    span.byte_range()
}

/// Changed body of a function.
#[derive(Debug)]
struct Variant {
    number: usize,
    body: String,
}

/// Source file with all its changes.
#[derive(Debug)]
pub(super) struct SourceFile {
    original: String,
    functions: Vec<Function>,
    /// Changed bodies by the index of their function.
    variants: BTreeMap<usize, Vec<Variant>>,
}

impl SourceFile {
    /// Returns a file without changes; `None` if the source does not parse.
    pub(super) fn new(original: String) -> Option<SourceFile> {
        let functions = functions(&original)?;
        Some(SourceFile { original, functions, variants: BTreeMap::new() })
    }

    /// Adds a change with the file's text `changed`. Returns false and adds nothing if the texts
    /// differ outside of function bodies or not at all, or if a changed function is `const`.
    pub(super) fn add(&mut self, number: usize, changed: &str) -> bool {
        let Some(bodies) = self.differences(changed) else { return false };
        for (index, body) in &bodies {
            let variants = self.variants.entry(*index).or_default();
            variants.push(Variant { number, body: (*body).to_owned() });
        }
        !bodies.is_empty()
    }

    /// Returns the functions with different bodies, with the changed bodies. Returns `None` for
    /// other differences.
    fn differences<'a>(&self, changed: &'a str) -> Option<Vec<(usize, &'a str)>> {
        let others = functions(changed)?;
        if others.len() != self.functions.len() {
            return None;
        }
        let (mut at, mut other_at) = (0, 0);
        let mut bodies = Vec::new();
        for (index, (function, other)) in self.functions.iter().zip(&others).enumerate() {
            if self.original.get(at..function.body.start)? != changed.get(other_at..other.body.start)? {
                return None;
            }
            let body = changed.get(other.body.clone())?;
            if self.original.get(function.body.clone())? != body {
                if function.is_const {
                    return None;
                }
                bodies.push((index, body));
            }
            (at, other_at) = (function.body.end, other.body.end);
        }
        (self.original.get(at..)? == changed.get(other_at..)?).then_some(bodies)
    }

    pub(super) fn remove(&mut self, numbers: &BTreeSet<usize>) {
        for variants in self.variants.values_mut() {
            variants.retain(|variant| !numbers.contains(&variant.number));
        }
        self.variants.retain(|_, variants| !variants.is_empty());
    }

    /// Returns the file with all its changes. A change is active if `EVENER_MUTANT` is its number.
    pub(super) fn gated(&self) -> GatedFile {
        let mut file = GatedFile::default();
        let mut at = 0;
        for (index, variants) in &self.variants {
            let Some(function) = self.functions.get(*index) else { continue };
            let shift = file.text.len();
            let before = self.original.get(at..function.body.start).unwrap_or_default();
            let start = shift + function.range.start.saturating_sub(at);
            file.text.push_str(before);
            file.text.push_str("{ ");
            for Variant { number, body } in variants {
                file.text.push_str(&format!("if crate::mutant::is({number}) "));
                let range = file.text.len()..file.text.len() + body.len();
                file.places.push(Place { range, numbers: [*number].into() });
                file.text.push_str(body);
                file.text.push_str(" else ");
            }
            file.text.push_str(self.original.get(function.body.clone()).unwrap_or_default());
            file.text.push_str(" }");
            let numbers = variants.iter().map(|variant| variant.number).collect();
            file.places.push(Place { range: start..file.text.len(), numbers });
            at = function.body.end;
        }
        file.text.push_str(self.original.get(at..).unwrap_or_default());
        file
    }
}

/// Range of bytes, and the changes that may cause an error in it.
#[derive(Debug)]
struct Place {
    range: Range<usize>,
    numbers: BTreeSet<usize>,
}

/// Text of a file with changes.
#[derive(Debug, Default)]
pub(super) struct GatedFile {
    pub(super) text: String,
    /// Ranges of each changed body, followed by those of its whole function.
    places: Vec<Place>,
}

impl GatedFile {
    /// Returns the changes that may cause an error at this byte: the change whose body contains the
    /// byte, or all changes of the function.
    pub(super) fn numbers_at(&self, byte: usize) -> BTreeSet<usize> {
        let place = self.places.iter().find(|place| place.range.contains(&byte));
        place.map(|place| place.numbers.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    const SOURCE: &str = "\
const LIMIT: u32 = 3; // ä, two bytes

fn first(x: u32) -> u32 {
    x + 1
}

pub mod inner {
    pub fn first(x: u32) -> u32 { x * 2 }
    pub const fn third() -> u32 { 3 }
}

struct Counter(u32);

impl Counter {
    /// Doc.
    fn next(&mut self) -> u32 { self.0 += 1; self.0 }
}

trait Named {
    fn id(&self) -> u32;
    fn name(&self) -> u32 { self.id() }
}
";

    /// Returns the source with these changes, each a pair of old and new text.
    fn gated(changes: &[(&str, &str)]) -> Option<String> {
        let mut file = SourceFile::new(SOURCE.to_owned())?;
        for (number, (before, after)) in (1..).zip(changes) {
            assert!(SOURCE.contains(before));
            if !file.add(number, &SOURCE.replace(before, after)) {
                return None;
            }
        }
        let text = file.gated().text;
        assert!(functions(&text).is_some(), "{text}");
        Some(text)
    }

    #[test]
    fn changed_function_keeps_both_bodies_and_the_rest_of_the_file() {
        let expected = SOURCE
            .replace("{\n    x + 1\n}", "{ if crate::mutant::is(1) {\n    x - 1\n} else {\n    x + 1\n} }");
        assert_eq!(gated(&[("x + 1", "x - 1")]), Some(expected));
    }

    #[test]
    fn two_changes_of_a_function_follow_each_other() {
        let both = "{ if crate::mutant::is(1) {\n    x - 1\n} else if crate::mutant::is(2) {\n    7\n} else {\n    x + 1\n} }";
        let expected = SOURCE.replace("{\n    x + 1\n}", both);
        assert_eq!(gated(&[("x + 1", "x - 1"), ("x + 1", "7")]), Some(expected));
    }

    #[test]
    fn methods_and_functions_of_inner_modules_are_found() {
        let after = "{ if crate::mutant::is(1) { self.0 } else { self.0 += 1; self.0 } }";
        let expected = SOURCE.replace("{ self.0 += 1; self.0 }", after);
        assert_eq!(gated(&[("self.0 += 1; ", "")]), Some(expected));
        let expected = SOURCE.replace("{ x * 2 }", "{ if crate::mutant::is(1) { x * 3 } else { x * 2 } }");
        assert_eq!(gated(&[("x * 2", "x * 3")]), Some(expected));
        let expected =
            SOURCE.replace("{ self.id() }", "{ if crate::mutant::is(1) { 0 } else { self.id() } }");
        assert_eq!(gated(&[("{ self.id() }", "{ 0 }")]), Some(expected));
    }

    #[test]
    fn changes_outside_bodies_of_functions_are_refused() {
        for (before, after) in [
            ("LIMIT: u32 = 3", "LIMIT: u32 = 4"),
            ("Counter(u32);", "Counter(u8);"),
            ("fn first(x: u32) -> u32 {\n    x + 1", "fn first(x: u64) -> u32 {\n    1"),
            ("const fn third() -> u32 { 3 }", "const fn third() -> u32 { 4 }"),
            ("    /// Doc.\n", "    fn more() {}\n"),
            ("x + 1", "x + 1"),
            ("x + 1", "x +"),
        ] {
            assert_eq!(gated(&[(before, after)]), None, "{before}");
        }
    }

    #[test]
    fn error_belongs_to_the_change_whose_body_has_it() {
        let mut file = SourceFile::new(SOURCE.to_owned()).unwrap();
        assert!(file.add(1, &SOURCE.replace("x + 1", "x - 1")));
        assert!(file.add(2, &SOURCE.replace("x + 1", "x / 1")));
        assert!(file.add(3, &SOURCE.replace("x * 2", "x * 3")));
        let gated = file.gated();
        let numbers = |text: &str| gated.numbers_at(gated.text.find(text).unwrap());
        assert_eq!(numbers("x - 1"), [1].into());
        assert_eq!(numbers("x / 1"), [2].into());
        assert_eq!(numbers("x + 1"), [1, 2].into());
        assert_eq!(numbers("first(x"), [1, 2].into());
        assert_eq!(numbers("x * 3"), [3].into());
        assert_eq!(numbers("LIMIT"), [].into());
        file.remove(&[1, 3].into());
        let expected = SOURCE
            .replace("{\n    x + 1\n}", "{ if crate::mutant::is(2) {\n    x / 1\n} else {\n    x + 1\n} }");
        assert_eq!(file.gated().text, expected);
    }
}
