//! `fq completions` and `fq man`: what clap knows about the commands, for shells and readers.

use clap_complete::Shell;

use super::error::{Failure, Plain};
use super::{Outcome, exit, out};

/// Prints a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  fq completions bash > ~/.local/share/bash-completion/completions/fq")]
pub(crate) struct CompletionArgs {
    /// Which shell
    shell: Shell,
}

/// Runs `fq completions`.
pub(crate) fn completions(args: &CompletionArgs) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut super::tree(), "fq", &mut text);
    out::bytes(&text)?;
    Ok(exit::OK)
}

/// Prints the manual page of fq or of one of its commands
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  fq man | man -l -\n  fq man submit > fq-submit.1")]
pub(crate) struct ManArgs {
    /// Which command
    command: Option<String>,
}

/// Runs `fq man`.
pub(crate) fn man(args: &ManArgs) -> Outcome {
    let mut tree = super::tree();
    tree.build();
    let command = match &args.command {
        None => tree,
        Some(name) => {
            let found = tree.find_subcommand(name).cloned();
            found
                .ok_or_else(|| Failure::usage(format!("there is no command `{name}`")).hint("`fq --help` lists them"))?
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(|error| Failure::new(exit::FQ_FAILED, "cannot make the manual page").because(&Plain(&error)))?;
    out::bytes(&text)?;
    Ok(exit::OK)
}
