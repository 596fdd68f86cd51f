//! The pages promise commands and files; they are there.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::path::Path;

use esker_tidy::{members, root, text};

/// The code blocks of a page.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```").skip(1).step_by(2).collect()
}

#[test]
fn the_readme_has_its_two_commands_and_they_exist() {
    let readme = text("README.md");
    let blocks = blocks(&readme);
    for command in ["cargo run --release --bin esker -- serve", "./scripts/test"] {
        assert!(
            blocks.iter().any(|block| block.lines().any(|line| line.trim() == command)),
            "README.md does not show `{command}`"
        );
    }
    let binary =
        members().iter().any(|folder| text(format!("{folder}/Cargo.toml")).contains("[[bin]]\nname = \"esker\""));
    assert!(binary, "no member of the workspace builds the binary `esker`");
    executable("scripts/test");
    executable(".ci/run");
}

fn executable(path: &str) {
    use std::os::unix::fs::PermissionsExt;
    let metadata = root().join(path).metadata().unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(metadata.permissions().mode() & 0o111 != 0, "{path} is not executable");
}

/// All pages: those at the root and those of the book, as paths from the root.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    let mut folders = vec!["docs".to_string()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    let others =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "packaging/README.md"];
    pages.extend(others.map(String::from));
    pages
}

/// Where the files stand that are not pages of the book, for its readers.
const REPOSITORY: &str = "https://github.com/esker-storage/esker/blob/main/";

/// Where the links of a page lead within the repository, from the root and without anchors.
fn links(page: &str) -> Vec<String> {
    let content = text(page);
    assert!(!content.is_empty(), "{page} is missing");
    let folder = Path::new(page).parent().unwrap();
    let targets = content.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.map(|link| link.split('#').next().unwrap()).filter(|file| !file.is_empty());
    files
        .filter_map(|file| match file.strip_prefix(REPOSITORY) {
            Some(file) => Some(file.to_string()),
            None if file.contains("://") || file.contains(' ') => None,
            None => Some(folder.join(file).to_str().unwrap().to_string()),
        })
        .collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in pages() {
        for file in links(&page) {
            assert!(root().join(&file).exists(), "{page} links to {file}, which does not exist");
        }
    }
}

/// A link out of the book would lead nowhere in a book that was built.
#[test]
fn pages_of_the_book_link_to_files_of_the_book_or_to_the_repository() {
    for page in pages().iter().filter(|page| page.starts_with("docs/")) {
        for link in text(page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let above = link.split('/').take_while(|part| *part == "..").count();
            assert!(above < page.split('/').count() - 1, "{page} links to {link}, which is not in the book");
        }
    }
}

#[test]
fn the_book_has_all_of_its_pages() {
    let summary = links("docs/SUMMARY.md");
    for page in pages().iter().filter(|page| page.starts_with("docs/") && *page != "docs/SUMMARY.md") {
        assert!(summary.contains(page), "docs/SUMMARY.md does not have {page}");
    }
}

#[test]
fn the_readme_is_read_in_a_few_minutes() {
    let bytes = text("README.md").len();
    assert!((2_048..=6_144).contains(&bytes), "{bytes} bytes");
}

/// Figures of a text, of three or more digits, without the marks between thousands.
fn figures(text: &str) -> Vec<String> {
    text.split(|at: char| !at.is_ascii_digit() && at != ',')
        .map(|figure| figure.replace(',', ""))
        .filter(|figure| figure.len() >= 3)
        .collect()
}

/// Failure: the README kept figures that a page had replaced, and some that stood on no page.
#[test]
fn figures_of_the_readme_stand_on_the_pages_that_say_how_they_were_measured() {
    let readme = text("README.md");
    let section = readme.split("## ").find(|section| section.starts_with("Beside its peers")).unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 8, "README.md has lost its table");
    let measured: std::collections::HashSet<String> = pages()
        .iter()
        .filter(|page| page.starts_with("docs/measurements/"))
        .flat_map(|page| figures(&text(page)))
        .collect();
    for row in rows {
        // What stands before "/s".
        for cell in row.split('|').filter(|cell| cell.contains("/s")) {
            let rates = figures(cell.split("/s").next().unwrap());
            assert!(!rates.is_empty(), "{cell}");
            for rate in rates {
                assert!(
                    measured.contains(&rate),
                    "README.md: {rate} of `{row}` stands on no page of docs/measurements"
                );
            }
        }
    }
    assert_eq!(figures("Redis 7, 34,208/s, 2,550 to 3,400/s"), ["34208", "2550", "3400"]);
}

#[test]
fn architecture_fits_on_two_pages() {
    let lines = text("ARCHITECTURE.md").lines().count();
    assert!((20..=110).contains(&lines), "{lines} lines");
}

/// Whether a page names a commit: the word, and seven or more hexadecimal digits.
fn names_a_commit(page: &str) -> bool {
    page.split("commit ").skip(1).any(|rest| rest.chars().take_while(char::is_ascii_hexdigit).count() >= 7)
}

/// Whether a page has a date, such as 3 November 2026.
fn has_a_date(page: &str) -> bool {
    let words: Vec<&str> = page.split_whitespace().collect();
    let number = |word: &str, longest: usize| {
        let digits = word.trim_end_matches(|last: char| last.is_ascii_punctuation());
        (1..=longest).contains(&digits.len()) && digits.chars().all(|digit| digit.is_ascii_digit())
    };
    let months = "January February March April May June July August September October November December";
    words.windows(3).any(|three| {
        number(three[0], 2)
            && months.split(' ').any(|month| month == three[1])
            && number(three[2], 4)
            && three[2].len() > 3
    })
}

#[test]
fn what_was_measured_has_its_commit_and_its_date() {
    for page in pages().iter().filter(|page| page.starts_with("docs/measurements/") && page.ends_with("/README.md")) {
        if page != "docs/measurements/README.md" {
            let said = text(page);
            assert!(names_a_commit(&said), "{page} does not say on which commit it was measured");
            assert!(has_a_date(&said), "{page} does not say when it was measured");
        }
    }
    assert!(names_a_commit("on commit 009cee9d, quiet") && !names_a_commit("a commit added it"));
    assert!(has_a_date("on 3 November 2026, quiet") && !has_a_date("in November 2026, 3 November 26"));
}
