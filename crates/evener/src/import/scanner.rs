//! The words and braces of nginx's and keepalived's files, in places: one for each part of a line
//! that belongs to one statement.

use std::collections::BTreeSet;

use super::source::{ImportError, IncludeError, Includes, Source, SourceLine};
use super::tree::Syntax;

/// Of a statement of nginx's that doesn't end.
pub(super) const UNFINISHED: &str = "a statement has no semicolon at its end: add it";

/// A part of a text.
#[derive(Debug, PartialEq)]
pub(super) enum Token {
    Word(String),
    Open,
    Close,
    End,
}

/// A place where text of code is: it has other quotations and comments than the file, and braces
/// of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// Between tokens.
    Plain,
    Quoted(char),
    /// `[[`, with so many equals signs in it, up to its counterpart.
    Long(usize),
}

/// Places and tokens of the text that has been read so far.
pub(super) struct Scanner {
    syntax: Syntax,
    includes: Includes,
    pub(super) out: Source,
    pub(super) tokens: Vec<(usize, Token)>,
    /// The places that have a word.
    pub(super) significant: BTreeSet<usize>,
    /// Number of lines that were read, of all files.
    rows: usize,
    /// The words of the statement that isn't ended yet.
    words: Vec<String>,
    /// The word that isn't ended yet.
    word: Option<String>,
    /// The quotation mark that isn't closed yet, and its place.
    quote: Option<(char, usize)>,
    /// Within a block of code: how many of its braces are open, and the state there.
    code: Option<(usize, Code)>,
}

/// The position in a line.
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

    /// The line behind the character that was read last.
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

    /// The place that is being read.
    fn place(&self) -> usize {
        self.out.lines.len() + 1
    }

    /// Reads a file, and those that it includes.
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
        // nginx takes no statement that goes on behind its file.
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
                // nginx takes a brace behind other characters for one of them.
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
            // A quoted word goes on; a part of it makes this line one of its statement's.
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

    /// Ends the current place before this position of its line.
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

    /// Ends a statement; the files that it includes stand behind it.
    fn end_statement(&mut self, cursor: &mut Cursor<'_>, row: usize) -> Result<(), ImportError> {
        self.end_word();
        self.tokens.push((self.place(), Token::End));
        let end = cursor.at();
        self.cut(cursor, end, row);
        let place = self.out.lines.len();
        let words = std::mem::take(&mut self.words);
        let pattern = match &words[..] {
            [word, pattern] if word == "include" => pattern,
            // Of keepalived, with what it does where the file is missing.
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

    /// A character of a block of Lua, whose last brace ends it.
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

/// The level of a long bracket of Lua, behind its first character: `[` has 0, `==[` has 2.
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
