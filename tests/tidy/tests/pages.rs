//! The pages promise commands and files; they are there.

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

#[test]
fn links_between_pages_lead_somewhere() {
    for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        let content = text(page);
        assert!(!content.is_empty(), "{page} is missing");
        for link in content.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            assert!(root().join(file).exists(), "{page} links to {file}, which does not exist");
        }
    }
}

#[test]
fn architecture_fits_on_two_pages() {
    let lines = text("ARCHITECTURE.md").lines().count();
    assert!((20..=110).contains(&lines), "{lines} lines");
}
