//! Splits files of nginx and keepalived into words and braces, each with its place.
//! A place is the part of a line that belongs to one statement.

use std::collections::BTreeSet;

use super::source::{ImportError, IncludeError, Includes, Source, SourceLine};
use super::tree::Syntax;

/// Error of an nginx statement without its end.
pub(super) const UNFINISHED: &str = "a statement has no semicolon at its end: add it";

#[derive(Debug, PartialEq)]
pub(super) enum Token {
    Word(String),
    Open,
    Close,
    End,
}

/// State within a block of code (Lua).
/// Code has other strings and comments than the file, and its own braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Plain,
    Quoted(char),
    /// A long string that begins with `[[`, with this number of equals signs between the brackets.
    Long(usize),
}

/// Places and tokens of the text read so far.
pub(super) struct Scanner {
    syntax: Syntax,
    includes: Includes,
    pub(super) out: Source,
    pub(super) tokens: Vec<(usize, Token)>,
    /// Places that contain a word.
    pub(super) significant: BTreeSet<usize>,
    /// Number of lines read, over all files.
    rows: usize,
    /// Words of the unfinished statement.
    words: Vec<String>,
    word: Option<String>,
    /// The open quotation mark and its place.
    quote: Option<(char, usize)>,
    /// In a block of code, the number of open braces and the state.
    code: Option<(usize, Code)>,
}

/// Position in a line.
struct Cursor<'l> {
    file: usize,
    number: usize,
    line: &'l str,
    /// Where the current place begins.
    from: usize,
    chars: std::iter::Peekable<std::str::CharIndices<'l>>,
}

impl<'l> Cursor<'l> {
    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.line.len(), |(at, _)| *at)
    }

    /// Returns the rest of the line after the last character read.
    fn rest(&mut self) -> &'l str {
        let at = self.at();
        self.line.get(at..).unwrap_or_default()
    }
}

impl Scanner {
    pub(super) fn new(syntax: Syntax, includes: Includes) -> Scanner {
        Scanner {
            syntax,
            includes,
            out: Source::default(),
            tokens: Vec::new(),
            significant: BTreeSet::new(),
            rows: 0,
            words: Vec::new(),
            word: None,
            quote: None,
            code: None,
        }
    }

    /// Returns the number of the current place.
    fn place(&self) -> usize {
        self.out.lines.len() + 1
    }

    /// Scans a file and the files that it includes.
    pub(super) fn file<'l>(
        &mut self,
        name: &str,
        lines: impl Iterator<Item = &'l str>,
    ) -> Result<(), ImportError> {
        let file = self.out.files.len();
        self.out.files.push(name.to_owned());
        for (at, line) in lines.enumerate() {
            self.rows += 1;
            let chars = line.char_indices().peekable();
            let row = self.rows;
            let mut cursor = Cursor { file, number: at + 1, line, from: 0, chars };
            self.line(&mut cursor, row)?;
        }
        // nginx rejects a statement that doesn't end within its included file.
        let open = self.tokens.last().filter(|(_, token)| file > 0 && matches!(token, Token::Word(_)));
        if let Some((place, _)) = open {
            return Err(self.out.error(*place, UNFINISHED));
        }
        if let Some((_, place)) = self.quote.take() {
            return Err(self.out.error(place, "a quotation begins here and doesn't end: close it"));
        }
        Ok(())
    }

    fn line(&mut self, cursor: &mut Cursor<'_>, row: usize) -> Result<(), ImportError> {
        while let Some((at, c)) = cursor.chars.next() {
            if self.code.is_some() {
                self.code(c, cursor, row);
                continue;
            }
            match (c, self.quote) {
                ('\\', _) => {
                    let next = cursor.chars.next().map(|(_, c)| c);
                    self.word.get_or_insert_default().extend([Some(c), next].into_iter().flatten());
                }
                (c, Some((open, _))) if c == open => self.quote = None,
                (c, Some(_)) => self.word.get_or_insert_default().push(c),
                ('"' | '\'', None) if self.word.is_none() => {
                    self.quote = Some((c, self.place()));
                    self.word = Some(String::new());
                }
                ('#', None) if self.word.is_none() => break,
                ('!', None) if self.word.is_none() && self.syntax == Syntax::Lines => break,
                (c, None) if c.is_whitespace() => self.end_word(),
                ('$', None) if cursor.chars.peek().is_some_and(|(_, c)| *c == '{') => {
                    let name = cursor.chars.by_ref().map(|(_, c)| c).take_while(|c| *c != '}');
                    let word = self.word.get_or_insert_default();
                    word.push(c);
                    word.extend(name);
                    word.push('}');
                }
                ('{', None) => self.open(cursor, row),
                // In nginx, a brace after other characters belongs to the word.
                ('}', None) if self.word.is_none() || self.syntax == Syntax::Lines => {
                    self.end_word();
                    self.cut(cursor, at, row);
                    self.tokens.push((self.place(), Token::Close));
                    self.words.clear();
                    let end = cursor.at();
                    self.cut(cursor, end, row);
                }
                (';', None) if self.syntax == Syntax::Semicolons => self.end_statement(cursor, row)?,
                (c, None) => self.word.get_or_insert_default().push(c),
            }
        }
        match self.quote {
            // The quoted word continues on the next line. Its first part marks this place as
            // significant.
            Some(_) => {
                let part = self.word.take().unwrap_or_default();
                self.push_word(part);
            }
            None => self.end_word(),
        }
        match self.quote.is_none() && self.code.is_none() && self.syntax == Syntax::Lines {
            true => self.end_statement(cursor, row)?,
            false => self.cut(cursor, cursor.line.len(), row),
        }
        Ok(())
    }

    fn push_word(&mut self, word: String) {
        self.significant.insert(self.place());
        self.words.push(word.clone());
        self.tokens.push((self.place(), Token::Word(word)));
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            self.push_word(word);
        }
    }

    /// Ends the current place before this position of the line.
    fn cut(&mut self, cursor: &mut Cursor<'_>, at: usize, row: usize) {
        let text = cursor.line.get(cursor.from..at).unwrap_or_default().trim();
        let has_token = self.tokens.last().is_some_and(|(place, _)| *place == self.place());
        if !text.is_empty() || has_token {
            let (file, number) = (cursor.file, cursor.number);
            self.out.lines.push(SourceLine { file, number, row, text: text.to_owned() });
        }
        cursor.from = at;
    }

    fn open(&mut self, cursor: &mut Cursor<'_>, row: usize) {
        self.end_word();
        self.tokens.push((self.place(), Token::Open));
        let is_code = self.words.first().is_some_and(|word| word.ends_with("_by_lua_block"));
        self.words.clear();
        let end = cursor.at();
        self.cut(cursor, end, row);
        self.code = is_code.then_some((1, Code::Plain));
    }

    /// Ends a statement. The files that it includes follow at this point.
    fn end_statement(&mut self, cursor: &mut Cursor<'_>, row: usize) -> Result<(), ImportError> {
        self.end_word();
        self.tokens.push((self.place(), Token::End));
        let end = cursor.at();
        self.cut(cursor, end, row);
        let place = self.out.lines.len();
        let words = std::mem::take(&mut self.words);
        let pattern = match &words[..] {
            [word, pattern] if word == "include" => pattern,
            // keepalived has variants of `include` that differ in how a missing file is handled.
            [word, pattern] if word.starts_with("include") && self.syntax == Syntax::Lines => pattern,
            _ => return Ok(()),
        };
        for path in self.includes.find(pattern) {
            let lines = match self.includes.open(&path) {
                Ok(Some(lines)) => lines,
                Ok(None) => {
                    self.out.unread.push((place, path.display().to_string()));
                    continue;
                }
                Err(IncludeError::Here(why)) => return Err(self.out.error(place, why)),
                Err(IncludeError::There(error)) => return Err(error),
            };
            self.out.followed.push(place);
            self.file(&path.display().to_string(), lines.iter().map(String::as_str))?;
            self.includes.close();
        }
        Ok(())
    }

    /// Scans a character of a block of Lua. The last closing brace ends the block.
    fn code(&mut self, c: char, cursor: &mut Cursor<'_>, row: usize) {
        let Some((depth, code)) = self.code else { return };
        if !c.is_whitespace() {
            self.significant.insert(self.place());
        }
        self.code = Some(match (code, c) {
            (Code::Quoted(mark), c) if c == mark => (depth, Code::Plain),
            (Code::Quoted(_), '\\') => {
                cursor.chars.next();
                (depth, code)
            }
            (Code::Long(level), ']') => {
                let end = format!("{}]", "=".repeat(level));
                let ends = cursor.rest().starts_with(&end);
                if ends {
                    cursor.chars.by_ref().take(end.len()).for_each(drop);
                }
                (depth, if ends { Code::Plain } else { code })
            }
            (Code::Quoted(_) | Code::Long(_), _) => (depth, code),
            (Code::Plain, '"' | '\'') => (depth, Code::Quoted(c)),
            (Code::Plain, '-') if cursor.rest().starts_with('-') => {
                cursor.chars.next();
                let long = cursor.rest().strip_prefix('[').and_then(long_level);
                match long {
                    Some(_) => {}
                    None => cursor.chars.by_ref().for_each(drop),
                }
                (depth, Code::Plain)
            }
            (Code::Plain, '[') => match long_level(cursor.rest()) {
                Some(level) => {
                    cursor.chars.by_ref().take(level + 1).for_each(drop);
                    (depth, Code::Long(level))
                }
                None => (depth, Code::Plain),
            },
            (Code::Plain, '{') => (depth + 1, Code::Plain),
            (Code::Plain, '}') if depth == 1 => {
                self.code = None;
                self.tokens.push((self.place(), Token::Close));
                let end = cursor.at();
                return self.cut(cursor, end, row);
            }
            (Code::Plain, '}') => (depth - 1, Code::Plain),
            (Code::Plain, _) => (depth, Code::Plain),
        });
        // A quoted string of Lua ends with its line.
        if let Some((depth, Code::Quoted(_))) = self.code
            && cursor.chars.peek().is_none()
        {
            self.code = Some((depth, Code::Plain));
        }
    }
}

/// Returns the level of a long bracket of Lua, without its first character: 0 for `[`, 2 for `==[`.
fn long_level(text: &str) -> Option<usize> {
    let rest = text.trim_start_matches('=');
    rest.starts_with('[').then(|| text.len() - rest.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn scan(text: &str) -> (Vec<String>, usize) {
        let source = Source::read(text.as_bytes(), "f").unwrap();
        let mut scanner = Scanner::new(Syntax::Semicolons, Includes::of(&source, None, false));
        scanner.file("f", text.lines()).unwrap();
        let places = scanner.out.lines.iter().map(|line| line.text.clone()).collect();
        (places, scanner.significant.len())
    }

    #[test]
    fn each_statement_of_a_line_has_its_place() {
        let (places, significant) = scan("location /a { deny all; proxy_pass http://b; } # c\n");
        assert_eq!(places, ["location /a {", "deny all;", "proxy_pass http://b;", "}", "# c"]);
        assert_eq!(significant, 3);
    }

    #[test]
    fn code_is_no_statements() {
        let lua = "content_by_lua_block { -- it's } \n local a = '}' .. [==[ } ]] ]==] .. {\"\\\"}\"}[1]\n\
                   --[[ }\n } ]] f() } deny all;\n";
        let (places, _) = scan(lua);
        assert_eq!(places.last().unwrap(), "deny all;");
        assert_eq!(places.len(), 6, "{places:?}");
    }
}
