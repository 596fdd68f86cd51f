//! docs/format.md and the code say the same: each structure's table repeats its fields, offsets and widths.
//!
//! A table is introduced by `<!-- table: NAME -->`; its first three columns are field, offset, bytes.

use std::collections::BTreeMap;

use esker_tidy::text;

type Fields = Vec<(String, usize, usize)>;

/// The tables of a page, by name.
fn tables(page: &str) -> BTreeMap<String, Fields> {
    let mut tables = BTreeMap::new();
    for part in page.split("<!-- table: ").skip(1) {
        let (name, rest) = part.split_once("-->").expect("a table comment ends with -->");
        let rows = rest
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'))
            .filter_map(row)
            .collect();
        tables.insert(name.trim().to_string(), rows);
    }
    tables
}

/// A row's field, offset and width; `None` for the heading, the rule under it, and rows of no fixed place.
fn row(line: &str) -> Option<(String, usize, usize)> {
    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
    Some((cells.first()?.trim_matches('`').to_string(), cells.get(1)?.parse().ok()?, cells.get(2)?.parse().ok()?))
}

#[test]
fn format_tables_tie_to_the_code() {
    let documented = tables(&text("docs/format.md"));
    let coded: BTreeMap<String, Fields> = esker_engine::format::layouts()
        .into_iter()
        .chain(esker_volume::layouts())
        .chain(esker_log::layouts())
        .map(|(name, fields)| {
            (
                name.to_string(),
                fields.iter().map(|(field, offset, bytes)| (field.to_string(), *offset, *bytes)).collect(),
            )
        })
        .collect();
    assert!(!coded.is_empty());
    for (name, fields) in &coded {
        let table = documented.get(name).unwrap_or_else(|| panic!("docs/format.md has no `<!-- table: {name} -->`"));
        assert_eq!(table, fields, "{name}; left: docs/format.md, right: the code");
    }
    for name in documented.keys() {
        assert!(coded.contains_key(name), "docs/format.md describes `{name}`, which the code does not have");
    }
}

#[test]
fn fields_neither_overlap_nor_leave_gaps() {
    let faces = esker_volume::layouts().into_iter().chain(esker_log::layouts());
    for (name, fields) in esker_engine::format::layouts().into_iter().chain(faces) {
        let mut end = 0;
        for (field, offset, bytes) in fields.iter() {
            assert_eq!(*offset, end, "{name}.{field} does not start where the field before it ends");
            end = offset + bytes;
        }
    }
}

#[test]
fn tables_are_read_with_their_places() {
    let page = "text\n<!-- table: thing -->\n\n| field | offset | bytes | meaning |\n|---|---|---|---|\n| `a` | 0 | 8 | x |\n| b | 8 | 4 | y |\n\n| not | 1 | 2 |\n";
    let expected = vec![("a".to_string(), 0, 8), ("b".to_string(), 8, 4)];
    assert_eq!(tables(page), BTreeMap::from([("thing".to_string(), expected)]));
}
