//! Statements and blocks in braces, as in files of nginx and keepalived.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use super::scanner::{Scanner, Token, UNFINISHED};
use super::source::{ImportError, Includes, Source};

/// Maximum depth of nested blocks.
const DEPTH: usize = 64;

/// How a program separates its statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// Statements end with semicolons; `#` begins a comment.
    Semicolons,
    /// Statements end with the line; `#` and `!` begin a comment.
    Lines,
}

/// A statement, with its block if there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    pub(super) words: Vec<String>,
    /// First place of the statement; `last` is the last one up to the brace.
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) block: Option<Vec<Statement>>,
    /// Place of the closing brace of the block, or the last place.
    pub(super) close: usize,
}

impl Statement {
    /// Returns the word at this index, or an empty one if there is none.
    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// Returns the statements of the block.
    pub(super) fn inner(&self) -> &[Statement] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Returns the places of the statement without its block.
    pub(super) fn lines(&self) -> RangeInclusive<usize> {
        self.first..=self.last
    }

    /// Returns all places, including the places of the block.
    pub(super) fn whole(&self) -> RangeInclusive<usize> {
        self.first..=self.close.max(self.last)
    }
}

/// The statements of a source and of the files that it includes.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// All places, one part of a line per statement.
    pub(super) source: Source,
    pub(super) statements: Vec<Statement>,
    /// Places that contain a word.
    pub(super) significant: BTreeSet<usize>,
}

/// Parses the statements of a file.
/// Included files are searched in `folder`. Without a folder, no included file is read.
///
/// # Errors
/// If a quotation, brace or statement doesn't end, or if a file includes itself.
pub(super) fn read(source: &Source, syntax: Syntax, folder: Option<&Path>) -> Result<Tree, ImportError> {
    let mut scanner = Scanner::new(syntax, Includes::of(source, folder, syntax == Syntax::Lines));
    let name = source.files.first().cloned().unwrap_or_default();
    scanner.file(&name, source.lines.iter().map(|line| line.text.as_str()))?;
    let Scanner { out, tokens, significant, .. } = scanner;
    let statements = Builder { source: &out, syntax }.build(tokens)?;
    Ok(Tree { statements, source: out, significant })
}

struct Builder<'s> {
    source: &'s Source,
    syntax: Syntax,
}

impl Builder<'_> {
    fn build(&self, tokens: Vec<(usize, Token)>) -> Result<Vec<Statement>, ImportError> {
        // Open blocks, each with its statement. The first one is the file itself.
        let mut open: Vec<(Statement, Vec<Statement>)> = vec![(Statement::default(), Vec::new())];
        let mut current: Option<Statement> = None;
        for (line, token) in tokens {
            match token {
                Token::Word(word) => {
                    let statement =
                        current.get_or_insert_with(|| Statement { first: line, ..Statement::default() });
                    statement.words.push(word);
                    statement.last = line;
                    statement.close = line;
                }
                Token::End => Self::end(&mut current, &mut open),
                Token::Open => {
                    if open.len() > DEPTH {
                        let why =
                            format!("blocks are nested more than {DEPTH} deep: this is not a configuration");
                        return Err(self.source.error(line, why));
                    }
                    let header = self.header(&mut current, &mut open, line);
                    open.push((header, Vec::new()));
                }
                Token::Close => {
                    if self.syntax == Syntax::Semicolons
                        && let Some(unfinished) = &current
                    {
                        return Err(self.source.error(unfinished.first, UNFINISHED));
                    }
                    Self::end(&mut current, &mut open);
                    self.close(&mut open, line)?;
                }
            }
        }
        if let (Some(unfinished), Syntax::Semicolons) = (&current, self.syntax) {
            return Err(self.source.error(unfinished.first, UNFINISHED));
        }
        Self::end(&mut current, &mut open);
        match open.pop() {
            Some((_, statements)) if open.is_empty() => Ok(statements),
            Some((header, _)) => {
                let why = "the block that begins here isn't closed: add its closing brace";
                Err(self.source.error(header.first, why))
            }
            None => Ok(Vec::new()),
        }
    }

    fn end(current: &mut Option<Statement>, open: &mut [(Statement, Vec<Statement>)]) {
        if let (Some(statement), Some((_, block))) = (current.take(), open.last_mut()) {
            block.push(statement);
        }
    }

    /// Returns the statement that an opening brace belongs to.
    /// If statements end with the line, the statement may be on the line before.
    fn header(
        &self,
        current: &mut Option<Statement>,
        open: &mut [(Statement, Vec<Statement>)],
        line: usize,
    ) -> Statement {
        let before = || {
            let (_, block) = open.last_mut().filter(|_| self.syntax == Syntax::Lines)?;
            block.pop_if(|last| last.block.is_none())
        };
        let nameless = Statement { first: line, last: line, close: line, ..Statement::default() };
        current.take().or_else(before).unwrap_or(nameless)
    }

    fn close(&self, open: &mut Vec<(Statement, Vec<Statement>)>, line: usize) -> Result<(), ImportError> {
        let closed = if open.len() > 1 { open.pop() } else { None };
        let Some((mut header, block)) = closed else {
            return Err(self.source.error(line, "a brace is closed here that none has opened: remove it"));
        };
        header.block = Some(block);
        header.close = line;
        if let Some((_, outer)) = open.last_mut() {
            outer.push(header);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn statements(text: &str, syntax: Syntax) -> Result<Vec<Statement>, (usize, String)> {
        let source = Source::read(text.as_bytes(), "f").unwrap();
        read(&source, syntax, None).map(|tree| tree.statements).map_err(|error| (error.line, error.why))
    }

    #[test]
    fn statements_keep_their_lines() {
        let read = statements("a b\n  'c d';\ne { f; # g\n}\n", Syntax::Semicolons).unwrap();
        assert_eq!(read[0].words, ["a", "b", "c d"]);
        assert_eq!((read[0].lines(), read[1].whole()), (1..=2, 3..=6));
        assert_eq!(read[1].inner()[0].words, ["f"]);
        let read = statements("a 1\n{\nb 2 ! c\n}\nd { e { f g } h 3 }\n", Syntax::Lines).unwrap();
        assert_eq!((read[0].words.len(), read[0].inner()[0].words.len()), (2, 2));
        assert_eq!(read[1].inner()[0].inner()[0].words, ["f", "g"]);
        assert_eq!(read[1].inner()[1].words, ["h", "3"]);
    }

    #[test]
    fn broken_text_names_its_line() {
        let broken = |text: &str| statements(text, Syntax::Semicolons).unwrap_err();
        assert!(matches!(broken("a;\nb {\n c;\n"), (2, why) if why.contains("isn't closed")));
        assert!(matches!(broken("a;\n}\n"), (2, why) if why.contains("none has opened")));
        assert!(matches!(broken("a;\nb"), (2, why) if why.contains("semicolon")));
        assert!(matches!(broken("a;\nb 'c\n"), (2, why) if why.contains("quotation")));
        assert!(matches!(broken(&"a {\n".repeat(100)), (65, why) if why.contains("64 deep")));
    }
}
