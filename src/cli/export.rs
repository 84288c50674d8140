//! Which variables of the submitting process become part of a job. Pure.
//!
//! By default none: a job sees its worker's environment and `FQ_*`, so that secrets do not land on a shared disk.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use fq::protocol::record::Bytes;

/// An environment: names and values.
pub(crate) type Env = Vec<(OsString, OsString)>;

/// Picks from `env` what the items of `--export` name: `NAME`, `NAME=VALUE`, `ALL`, `NONE`, separated by commas.
///
/// Later items win. Names that begin with `FQ_` are fq's own: `ALL` leaves them out, naming one is an error, and so is a name
/// that is not set.
pub(crate) fn pick(lists: &[OsString], env: &Env) -> Result<Vec<(Bytes, Bytes)>, String> {
    let mut picked: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut set = |name: &[u8], value: &[u8]| {
        picked.retain(|(known, _)| known != name);
        picked.push((name.to_vec(), value.to_vec()));
    };
    for item in lists.iter().flat_map(|list| list.as_bytes().split(|&b| b == b',')) {
        let shown = || String::from_utf8_lossy(item).into_owned();
        match item {
            b"NONE" => {}
            b"ALL" => env
                .iter()
                .filter(|(name, _)| !is_ours(name.as_bytes()))
                .for_each(|(n, v)| set(n.as_bytes(), v.as_bytes())),
            _ => {
                let cut = item.iter().position(|&b| b == b'=');
                let (name, value) = item.split_at(cut.unwrap_or(item.len()));
                if name.is_empty() {
                    return Err(format!(
                        "`{}` names no variable: expected `NAME`, `NAME=VALUE`, `ALL` or `NONE`",
                        shown()
                    ));
                }
                if is_ours(name) {
                    return Err(format!("`{}` cannot be exported: names that begin with `FQ_` are set by fq", shown()));
                }
                let known = || env.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, v)| v.as_bytes());
                match value.strip_prefix(b"=").or_else(known) {
                    Some(value) => set(name, value),
                    None => return Err(format!("`{}` cannot be exported: it is not set here", shown())),
                }
            }
        }
    }
    Ok(picked.into_iter().map(|(name, value)| (Bytes(name), Bytes(value))).collect())
}

/// All of `env`, for commands whose task stands for a local process: less fq's own names, and less make's job server, whose
/// descriptors mean nothing in another process.
pub(crate) fn everything(env: &Env) -> Vec<(Bytes, Bytes)> {
    let kept = env.iter().filter(|(name, _)| !is_ours(name.as_bytes()));
    let pair = |(name, value): &(OsString, OsString)| {
        let flags = matches!(name.as_bytes(), b"MAKEFLAGS" | b"MFLAGS");
        let value = if flags { without_jobserver(value.as_bytes()) } else { value.clone().into_vec() };
        (Bytes(name.clone().into_vec()), Bytes(value))
    };
    kept.map(pair).collect()
}

fn is_ours(name: &[u8]) -> bool {
    name.starts_with(b"FQ_")
}

/// Make's flags without `-jN` and the job server; what follows `--` are variables and stays.
fn without_jobserver(flags: &[u8]) -> Vec<u8> {
    let mut words = flags.split(|&b| b == b' ');
    let mut kept: Vec<&[u8]> = Vec::new();
    for word in words.by_ref() {
        if word == b"--" {
            kept.push(word);
            break;
        }
        let jobs = word.strip_prefix(b"-j").is_some_and(|n| n.iter().all(u8::is_ascii_digit));
        if !jobs && !word.starts_with(b"--jobserver-") {
            kept.push(word);
        }
    }
    kept.extend(words);
    kept.join(&b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> Env {
        [("HOME", "/h"), ("TOKEN", "s3cret"), ("FQ_JOB_ID", "7"), ("MAKEFLAGS", "kn -j8 --jobserver-auth=3,4 -- A=-j8")]
            .map(|(n, v)| (n.into(), v.into()))
            .to_vec()
    }

    #[track_caller]
    fn check(list: &str, expected: &[(&str, &str)]) {
        let picked = pick(&[list.into()], &env()).unwrap_or_default();
        let expected: Vec<_> = expected.iter().map(|&(n, v)| (Bytes::from(n), Bytes::from(v))).collect();
        assert_eq!(picked, expected, "{list}");
    }

    #[test]
    fn only_what_is_named_is_exported() {
        assert_eq!(pick(&[], &env()), Ok(vec![]));
        check("NONE", &[]);
        check("HOME", &[("HOME", "/h")]);
        check("HOME,SEED=3,EMPTY=", &[("HOME", "/h"), ("SEED", "3"), ("EMPTY", "")]);
        check("A=1,A=2", &[("A", "2")]);
    }

    #[test]
    fn all_leaves_out_what_fq_sets_itself() {
        let names = pick(&["ALL,HOME=/x".into()], &env()).unwrap_or_default();
        let names: Vec<_> = names.iter().map(|(n, v)| (n.0.as_slice(), v.0.as_slice())).collect();
        assert_eq!(
            names,
            [
                (&b"TOKEN"[..], &b"s3cret"[..]),
                (b"MAKEFLAGS", b"kn -j8 --jobserver-auth=3,4 -- A=-j8"),
                (b"HOME", b"/x")
            ]
        );
    }

    #[test]
    fn unset_and_reserved_names_are_refused() {
        for list in ["NOT_SET", "FQ_JOB_ID", "FQ_X=1", "=1", "A=1,,B=2"] {
            assert!(pick(&[list.into()], &env()).is_err(), "{list}");
        }
    }

    #[test]
    fn a_recorded_environment_has_no_job_server() {
        let all = everything(&env());
        let flags = all.iter().find(|(name, _)| name.0 == b"MAKEFLAGS").map(|(_, v)| v.0.clone());
        assert_eq!(flags.as_deref(), Some(&b"kn -- A=-j8"[..]));
        assert!(all.iter().all(|(name, _)| name.0 != b"FQ_JOB_ID"));
    }
}
