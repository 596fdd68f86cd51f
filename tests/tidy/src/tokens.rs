//! Reads a source file as tokens, the way rustc does, so that a rule never trips over a comment or a string.
//!
//! Only what rules about names and paths need: identifiers and punctuation. Literals and lifetimes give no token.
//!
//! Invariant: what stands under `#[cfg(test)]` is no part of the result of [`code_tokens`].

/// One token of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// An identifier or keyword; `r#` is taken off.
    Ident(String),
    /// `::`.
    Path,
    /// Any other single character of punctuation.
    Mark(char),
}

impl Token {
    /// Whether this is the mark `mark`.
    pub fn is(&self, mark: char) -> bool {
        *self == Token::Mark(mark)
    }

    /// The identifier, if this is one.
    pub fn ident(&self) -> Option<&str> {
        match self {
            Token::Ident(name) => Some(name),
            _ => None,
        }
    }
}

/// The tokens of `source`, without what stands under `#[cfg(test)]`.
pub fn code_tokens(source: &str) -> Vec<Token> {
    without_tests(&tokens(source))
}

/// Every token of `source`.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let (mut at, mut found) = (0, Vec::new());
    while at < chars.len() {
        let c = chars[at];
        let next = chars.get(at + 1).copied().unwrap_or(' ');
        match c {
            '/' if next == '/' => at = line_end(&chars, at),
            '/' if next == '*' => at = block_comment_end(&chars, at),
            '"' => at = string_end(&chars, at + 1),
            '\'' => at = quote_end(&chars, at),
            ':' if next == ':' => {
                found.push(Token::Path);
                at += 2;
            }
            _ if c.is_alphabetic() || c == '_' => at = word_end(&chars, at, &mut found),
            _ if c.is_ascii_digit() => {
                while chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_') {
                    at += 1;
                }
            }
            _ => {
                if !c.is_whitespace() {
                    found.push(Token::Mark(c));
                }
                at += 1;
            }
        }
    }
    found
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| at + length)
}

/// Block comments nest.
fn block_comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

/// The place after the closing quote of a string whose text begins at `at`.
fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The place after a character literal or a lifetime that begins at `at`.
fn quote_end(chars: &[char], at: usize) -> usize {
    if chars.get(at + 1) == Some(&'\\') {
        let closing = chars.iter().skip(at + 3).position(|c| *c == '\'');
        return closing.map_or(chars.len(), |length| at + 4 + length);
    }
    if chars.get(at + 2) == Some(&'\'') {
        return at + 3;
    }
    let name = chars[at + 1..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
    at + 1 + name
}

/// Takes the word at `at`, which may turn out to be the prefix of a string or of a raw identifier.
fn word_end(chars: &[char], at: usize, found: &mut Vec<Token>) -> usize {
    let length = chars[at..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
    let word: String = chars[at..at + length].iter().collect();
    let end = at + length;
    let hashes = chars[end..].iter().take_while(|c| **c == '#').count();
    let quoted = chars.get(end + hashes) == Some(&'"');
    match word.as_str() {
        "r" | "br" | "cr" if quoted => {
            let closing: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let text = end + hashes + 1;
            let length = chars[text..].windows(closing.len()).position(|part| part == closing);
            return length.map_or(chars.len(), |length| text + length + closing.len());
        }
        "b" | "c" if quoted && hashes == 0 => return string_end(chars, end + 1),
        "b" if chars.get(end) == Some(&'\'') => return quote_end(chars, end),
        "r" if hashes == 1 => return end + 1,
        _ => found.push(Token::Ident(word)),
    }
    end
}

/// `tokens` without the items that a `#[cfg(test)]` stands before.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let (mut at, mut kept) = (0, Vec::new());
    while at < tokens.len() {
        if tokens[at].is('#') && tokens.get(at + 1).is_some_and(|token| token.is('[')) {
            let end = closed(tokens, at + 1);
            if is_cfg_test(&tokens[at..end]) {
                at = item_end(tokens, end);
                continue;
            }
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// `cfg(test)`, or `test` as one of several conditions that must all hold.
fn is_cfg_test(attribute: &[Token]) -> bool {
    let words: Vec<&str> = attribute.iter().filter_map(Token::ident).collect();
    words == ["cfg", "test"]
        || (words.starts_with(&["cfg", "all"]) && words.contains(&"test") && !words.contains(&"not"))
}

/// The place after the bracket that closes the one at `at`.
pub(crate) fn closed(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(at) {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return place + 1;
        }
    }
    tokens.len()
}

/// Words that only items have before their names.
const ITEM_WORDS: &[&str] = &["const", "enum", "fn", "impl", "mod", "static", "struct", "trait", "type", "use"];

/// The place after the item, statement or field that begins at `at`: after its `;`, `,` or `{…}`, or before the
/// bracket that closes what it stands in.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    // The commas of an item stand between the names of its types; a field or an arm ends with one.
    let mut item = false;
    while at < tokens.len() {
        match &tokens[at] {
            Token::Mark('{') => return closed(tokens, at),
            Token::Mark('(' | '[') => at = closed(tokens, at),
            Token::Mark(';') => return at + 1,
            Token::Mark(',') if !item => return at + 1,
            Token::Mark(')' | ']' | '}') => return at,
            token => {
                item |= token.ident().is_some_and(|word| ITEM_WORDS.contains(&word));
                at += 1;
            }
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        code_tokens(source).iter().filter_map(|token| token.ident().map(str::to_string)).collect()
    }

    #[test]
    fn comments_strings_and_lifetimes_give_no_words() {
        let source =
            "fn f<'a>(x: &'a str) -> char { /* one /* two */ */ g(\"a\\\"b\", r#\"c \" d\"#, b'x', '\\'', 'y') } // z";
        assert_eq!(words(source), ["fn", "f", "x", "str", "char", "g"]);
    }

    #[test]
    fn what_is_only_for_tests_is_left_out() {
        let source = "use a;\n#[cfg(test)]\nuse b;\n#[cfg(test)]\n#[allow(x)]\nmod tests { fn c() {} }\nfn d() {}";
        assert_eq!(words(source), ["use", "a", "fn", "d"]);
        assert_eq!(words("#[cfg(not(test))] fn a() {}"), ["cfg", "not", "test", "fn", "a"]);
        assert_eq!(words("#[cfg(test)] fn a<B, C>() {}\nfn d() {}"), ["fn", "d"]);
        assert_eq!(words("S { #[cfg(test)] a: b(), c }"), ["S", "c"]);
    }
}
