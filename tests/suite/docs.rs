//! Keeps the pages true where a program can tell: links lead somewhere, and the table of parameters is the code's.

use std::fs;
use std::path::{Path, PathBuf};

use fq::protocol::record::Limits;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display()))
}

/// All pages: in the root, in `spec/` and in `docs/`.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in [root().to_owned(), root().join("spec"), root().join("docs")] {
        let entries = fs::read_dir(&dir).expect("a directory of pages");
        found.extend(entries.map(|e| e.expect("an entry").path()).filter(|p| p.extension().is_some_and(|e| e == "md")));
    }
    found
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with('#') {
                continue;
            }
            count += 1;
            let target = link.split('#').next().unwrap_or(link);
            let there = page.parent().expect("a directory").join(target).exists();
            assert!(there, "{}: `{link}` leads nowhere", page.display());
        }
    }
    assert!(count > 10, "{count} links");
}

/// `[1000,60000]` and `8388608` as the page writes them: `[1,000, 60,000]`, `8 MiB`.
fn as_written(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(as_written).collect::<Vec<_>>().join(", ")),
        value => match value.as_u64().expect("a number") {
            n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
            n => {
                let digits = n.to_string();
                let first = digits.len() % 3;
                let groups = (first..digits.len()).step_by(3).map(|at| &digits[at..at + 3]);
                let head = Some(&digits[..first]).filter(|head| !head.is_empty());
                head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
            }
        },
    }
}

#[test]
fn the_table_of_parameters_has_every_limit_with_its_default() {
    let page = read(&root().join("spec/leases.md"));
    let rows: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            Some((cells.next()?.trim().trim_end_matches('`'), cells.next()?.trim()))
        })
        .collect();
    let limits = serde_json::to_value(Limits::default()).expect("JSON");
    let expected: Vec<(String, String)> =
        limits.as_object().expect("members").iter().map(|(name, value)| (name.clone(), as_written(value))).collect();
    let found: Vec<(String, String)> = rows.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_tree_of_the_layout_page_names_every_directory_of_a_new_queue() {
    let page = read(&root().join("spec/layout.md"));
    for dir in fq::protocol::layout::DIRECTORIES {
        let name = dir.rsplit('/').next().unwrap_or(dir);
        assert!(page.contains(&format!("{name}/")), "`{dir}` is not on the page");
    }
}
