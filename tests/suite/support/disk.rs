//! File systems made for one test, filled and looked through.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a helper program; says whether it succeeded, or why not.
pub(crate) fn helper(program: &str, args: &[&str]) -> Result<(), String> {
    let output =
        Command::new(program).args(args).stdin(Stdio::null()).output().map_err(|e| format!("{program}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {text}")) }
}

/// A small file system of its own, gone at the end of the test.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// Mounts a tmpfs on the new directory `dir`, or says why that is refused.
    pub(crate) fn tmpfs(dir: &Path, options: &str) -> Result<Self, String> {
        std::fs::create_dir(dir).map_err(|e| e.to_string())?;
        let name = dir.to_str().ok_or("the path is not UTF-8")?;
        helper("mount", &["-t", "tmpfs", "-o", &format!("mode=755,{options}"), "tmpfs", name])?;
        Ok(Self(dir.to_owned()))
    }

    /// Mounts `what` once more on the new directory `dir`, for reading only.
    pub(crate) fn read_only(what: &Path, dir: &Path) -> Result<Self, String> {
        std::fs::create_dir(dir).map_err(|e| e.to_string())?;
        let (what, name) = (what.to_str().ok_or("not UTF-8")?, dir.to_str().ok_or("not UTF-8")?);
        helper("mount", &["--bind", what, name])?;
        let mount = Self(dir.to_owned());
        helper("mount", &["-o", "remount,bind,ro", name])?;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(name) = self.0.to_str() {
            let _ = helper("umount", &["-l", name]);
        }
    }
}

/// The file that [`fill`] makes.
pub(crate) const HOG: &str = ".hog";

/// Fills `dir`'s file system to the last byte with the file [`HOG`], and says whether there was any room; may be done again.
pub(crate) fn fill(dir: &Path) -> bool {
    use std::io::Write as _;
    let path = dir.join(HOG);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.append(true).create(true).open(&path).expect("there is room for a name");
    let len = || std::fs::metadata(&path).expect("it is there").len();
    let before = len();
    for size in [65_536, 4096, 512, 1] {
        let piece = vec![0; size];
        while file.write_all(&piece).is_ok() {}
    }
    len() > before
}

/// All that lies below `dir`, with contents, for telling whether anything was touched.
pub(crate) fn snapshot(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in walkdir::WalkDir::new(dir).sort_by_file_name() {
        let entry = entry.expect("the directory can be read");
        let content = match entry.file_type() {
            kind if kind.is_file() => std::fs::read(entry.path()).expect("a file can be read"),
            kind if kind.is_symlink() => b"link".to_vec(),
            _ => Vec::new(),
        };
        found.push((entry.path().to_owned(), content));
    }
    found
}
