//! What several tokens in `decisions/head` come to: the one judgement that a master acts on and that `fq fsck` explains.
//!
//! Invariants:
//! - A pure function of the names, of the queue's first decision and of what the groups name as their predecessors, so that all
//!   who see the same keep the same one.
//! - A stray is what a rename that was cut in half leaves (a predecessor beside its successor, or two successors of one decision), or
//!   what an `fq init` that lost against another one leaves. Nothing else is: it comes from two copies of a queue.

use crate::protocol::id::DecisionId;

/// The head, and what may be set aside for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The decision whose token stays: the highest number, and of equal ones the smallest nonce.
    pub keep: DecisionId,
    /// The names of the others in the order of [`Judgement::keep`], each safe to rename away.
    pub strays: Vec<String>,
}

/// Judges `tokens`, which are names and what they stand for, of the queue whose first decision is `first`, if that is known.
/// `None` if they are not what one queue can leave, which is for a person.
///
/// `prev` tells the predecessor that the group of a decision names; its error is passed on. It is asked for as few as possible.
pub fn judge<E>(
    tokens: &[(String, DecisionId)],
    first: Option<DecisionId>,
    mut prev: impl FnMut(DecisionId) -> Result<Option<DecisionId>, E>,
) -> Result<Option<Judgement>, E> {
    let is_losers = |id: DecisionId| id.generation == 0 && first.is_some_and(|first| id != first);
    let mut order: Vec<&(String, DecisionId)> = tokens.iter().collect();
    order.sort_by_key(|(name, id)| (is_losers(*id), std::cmp::Reverse(id.generation), id.nonce, name));
    let Some((&&(_, keep), others)) = order.split_first() else { return Ok(None) };
    if is_losers(keep) {
        return Ok(None);
    }
    let before = prev(keep)?;
    for &&(_, id) in others {
        let is_stray = is_losers(id)
            || Some(id) == before
            || (id.generation == keep.generation && id != keep && before.is_some() && prev(id)? == before);
        if !is_stray {
            return Ok(None);
        }
    }
    Ok(Some(Judgement { keep, strays: others.iter().map(|(name, _)| name.clone()).collect() }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use super::*;
    use crate::protocol::id::Nonce;

    fn id(text: &str) -> DecisionId {
        let (generation, nonce) = text.trim_start_matches(".head.").split_once(['.', '-']).expect("two numbers");
        let number = |part: &str| part.parse().expect("a number");
        DecisionId { generation: number(generation), nonce: Nonce(number(nonce)) }
    }

    /// Judges the tokens named in `names`, `g.nonce` each, in a queue that begins with 0.1, and compares with what is kept and what
    /// is set aside.
    #[track_caller]
    fn check(names: &str, expected: Option<(&str, &str)>) {
        let line: BTreeMap<DecisionId, DecisionId> = [
            ("1.1", "0.1"),
            ("1.2", "0.1"),
            ("2.1", "1.1"),
            ("2.2", "1.2"),
            ("3.1", "2.1"),
            ("3.2", "2.1"),
            ("3.3", "2.2"),
            ("4.1", "3.1"),
        ]
        .map(|(of, before)| (id(of), id(before)))
        .into();
        let tokens: Vec<_> = names.split_whitespace().map(|name| (name.to_owned(), id(name))).collect();
        let prev = |id: DecisionId| Ok::<_, Infallible>(line.get(&id).copied());
        let Ok(found) = judge(&tokens, Some(id("0.1")), prev);
        let expected = expected.map(|(keep, strays)| Judgement {
            keep: id(keep),
            strays: strays.split_whitespace().map(str::to_owned).collect(),
        });
        assert_eq!(found, expected, "{names}");
    }

    #[test]
    fn strays_are_what_half_a_rename_or_an_init_that_lost_leaves() {
        for (names, expected) in [
            // One alone, and none.
            ("", None),
            ("3.1", Some(("3.1", ""))),
            // A predecessor beside its successor, whatever the order of the listing.
            ("2.1 3.1", Some(("3.1", "2.1"))),
            ("3.1 2.1", Some(("3.1", "2.1"))),
            ("0.1 1.1", Some(("1.1", "0.1"))),
            // Two or three of one predecessor, and that one too.
            ("3.2 3.1", Some(("3.1", "3.2"))),
            ("3.2 2.1 3.1", Some(("3.1", "3.2 2.1"))),
            ("1.2 1.1 0.1", Some(("1.1", "1.2 0.1"))),
            // Those of an `init` that lost, at any time, also with a smaller nonce than the winner's.
            ("0.0 0.1", Some(("0.1", "0.0"))),
            ("0.1 0.2 0.3", Some(("0.1", "0.2 0.3"))),
            ("0.2 4.1", Some(("4.1", "0.2"))),
            ("0.2 3.1 4.1", Some(("4.1", "3.1 0.2"))),
            // An older ancestor was copied here, or was hidden for long: decisions may hang on either.
            ("2.1 4.1", None),
            ("0.1 4.1", None),
            ("3.1 2.1 4.1", None),
            // Another line.
            ("3.3 3.1", None),
            ("2.2 3.1", None),
            ("2.1 3.1 3.3", None),
            // One that no group is known of, and one whose number nothing stands behind.
            ("3.9 3.1", None),
            ("9.1 9.2", None),
            // Without the queue's own: it may be on its way.
            ("0.2 0.3", None),
            // The same decision under both ways of naming it, of which only one is the queue's.
            ("3.1 .head.3-1", None),
        ] {
            check(names, expected);
        }
    }

    #[test]
    fn nobody_is_called_the_loser_of_an_init_where_the_winner_is_not_known() {
        let tokens = ["0.1", "0.2"].map(|name| (name.to_owned(), id(name)));
        assert_eq!(judge(&tokens, None, |_| Ok::<_, Infallible>(None)), Ok(None));
    }

    #[test]
    fn what_cannot_be_read_is_no_judgement() {
        let tokens = ["2.1", "3.1"].map(|name| (name.to_owned(), id(name)));
        assert_eq!(judge(&tokens, None, |_| Err("damaged")), Err("damaged"));
    }
}
