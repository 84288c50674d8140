//! Whose manifests a worker runs (spec: leases, "Strangers"). Pure.

use crate::protocol::record::Trust;

/// Decides whether a worker runs what user `owner` submitted; `is_member` tells whether a user is in a group.
///
/// Its own user always; the users it was told to trust; members of the queue's group, but never for root: what a group may do
/// to one of its members, it must not be able to do to the whole machine.
pub fn trusts(trust: &Trust, owner: u32, is_member: &dyn Fn(u32, u32) -> bool) -> bool {
    owner == trust.uid
        || trust.uids.contains(&owner)
        || (trust.uid != 0 && trust.gid.is_some_and(|gid| is_member(owner, gid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(trust: &Trust, owner: u32, expected: bool) {
        let is_member = |uid, gid| gid == 50 && uid == 1001;
        assert_eq!(trusts(trust, owner, &is_member), expected, "{trust:?} {owner}");
    }

    #[test]
    fn strangers_are_refused_unless_trusted_by_group_or_name() {
        let own = Trust { uid: 1000, gid: None, uids: Vec::new() };
        check(&own, 1000, true);
        check(&own, 1001, false);
        check(&own, 0, false);
        check(&Trust { gid: Some(50), ..own.clone() }, 1001, true);
        check(&Trust { gid: Some(50), ..own.clone() }, 1002, false);
        check(&Trust { uids: vec![1002], ..own }, 1002, true);
    }

    #[test]
    fn root_trusts_no_group() {
        let root = Trust { uid: 0, gid: Some(50), uids: vec![1002] };
        check(&root, 1001, false);
        check(&root, 1002, true);
        check(&root, 0, true);
    }
}
