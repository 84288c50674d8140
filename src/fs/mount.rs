//! What the mount under a queue says about itself: file system, options, and what follows from them.
//!
//! Invariants:
//! - Everything here is what the mount *claims*. It chooses how to write safely and what to tell people; whether locks and
//!   freshness really work is measured by the probe.
//! - A file system that is not known gets the careful answer to every question.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount as `/proc/self/mountinfo` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// The type as the kernel prints it, such as `nfs4` or `fuse.sshfs`; empty where the mount could not be found.
    pub fs_type: String,
    /// The device or server that is mounted.
    pub source: String,
    /// The options of the mount followed by those of the file system, in the order of the kernel.
    pub options: Vec<String>,
    /// The family that it belongs to.
    pub kind: MountKind,
}

/// The families of file systems that are treated differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountKind {
    /// A file system of this host alone.
    Local,
    /// NFS of the version in the text, such as `3` or `4.2`.
    Nfs {
        /// The protocol version, digits and dots.
        version: String,
    },
    /// Lustre.
    Lustre,
    /// `BeeGFS`.
    BeeGfs,
    /// GPFS, also known as Storage Scale.
    Gpfs,
    /// `CephFS`, by the kernel or by FUSE.
    Ceph,
    /// `GlusterFS`.
    Gluster,
    /// `MooseFS` and its descendants.
    MooseFs,
    /// A directory of another host over SSH.
    Sshfs,
    /// Anything else.
    Unknown,
}

impl MountKind {
    fn of(fs_type: &str, source: &str, options: &[String]) -> Self {
        let version = |default: &str| {
            let given = options.iter().find_map(|o| o.strip_prefix("vers=").or_else(|| o.strip_prefix("nfsvers=")));
            Self::Nfs { version: given.unwrap_or(default).to_owned() }
        };
        match fs_type {
            "nfs" => version("3"),
            "nfs4" => version("4"),
            "lustre" => Self::Lustre,
            "beegfs" | "beegfs_nodev" | "fhgfs" => Self::BeeGfs,
            "gpfs" | "mmfs" => Self::Gpfs,
            "ceph" | "fuse.ceph" | "fuse.ceph-fuse" => Self::Ceph,
            "glusterfs" | "fuse.glusterfs" => Self::Gluster,
            "fuse.mfs" | "fuse.mfsmount" | "fuse.lizardfs" | "fuse.saunafs" => Self::MooseFs,
            "fuse" if source.starts_with("mfs#") => Self::MooseFs,
            "fuse.sshfs" => Self::Sshfs,
            "fuse" if source.starts_with("sshfs#") => Self::Sshfs,
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "bcachefs" | "zfs" | "f2fs" | "jfs" | "nilfs2"
            | "reiserfs" | "tmpfs" | "ramfs" | "overlay" | "vfat" | "exfat" | "ntfs3" | "fuseblk" => Self::Local,
            _ => Self::Unknown,
        }
    }

    /// Whether all processes that can use the files run on this host and share its page cache, so that local notification
    /// sees every change.
    pub fn is_local(&self) -> bool {
        *self == Self::Local
    }

    /// Whether a renamed file has to be synced through a descriptor that was opened before.
    ///
    /// Local: makes sure that the file is durable under its new name. `CephFS`: without it other clients can stall for seconds
    /// on the new name.
    pub fn needs_token_sync(&self) -> bool {
        matches!(self, Self::Local | Self::Ceph)
    }

    /// Whether the server itself makes every change of a directory durable before it answers, so that a client has nothing to
    /// add.
    pub fn syncs_directories_itself(&self) -> bool {
        matches!(self, Self::Nfs { .. })
    }

    /// Whether names that were made and not synced can vanish with the power of the server while their client lives on and is
    /// told by no call. Not on NFS, whose server writes names before it answers, nor where clients replay what a server had not
    /// written (Lustre, GPFS, `CephFS`).
    pub fn drops_names(&self) -> bool {
        matches!(self, Self::BeeGfs | Self::Gluster | Self::MooseFs | Self::Sshfs | Self::Unknown)
    }

    /// Whether a name that was made within the server's clock tick of a listing may stay hidden until the directory changes
    /// again.
    pub fn same_tick_hole(&self) -> bool {
        matches!(self, Self::Nfs { version } if version.starts_with('2') || version.starts_with('3'))
    }
}

impl fmt::Display for MountKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Nfs { version } => return write!(f, "NFS {version}"),
            Self::Lustre => "Lustre",
            Self::BeeGfs => "BeeGFS",
            Self::Gpfs => "GPFS",
            Self::Ceph => "CephFS",
            Self::Gluster => "GlusterFS",
            Self::MooseFs => "MooseFS",
            Self::Sshfs => "sshfs",
            Self::Unknown => "unknown",
        })
    }
}

impl MountInfo {
    /// Finds the mount that holds `path` in the text of a `mountinfo` file.
    ///
    /// `path` is absolute and free of links. `device` is the major and minor number of the open directory: mounts with that
    /// number win, then the longest mount point, then the latest. Some file systems (Btrfs) show one number here and another to
    /// `stat`; then the path alone decides. `None` if no mount holds `path`. Lines that cannot be read are skipped.
    pub fn find(mountinfo: &str, path: &Path, device: Option<(u32, u32)>) -> Option<Self> {
        mountinfo
            .lines()
            .filter_map(Line::parse)
            .filter(|line| path.starts_with(&line.point))
            .enumerate()
            .max_by_key(|(index, line)| (Some(line.device) == device, line.point.components().count(), *index))
            .map(|(_, line)| line.into_info())
    }

    /// The answer where nothing is known.
    pub fn unknown() -> Self {
        Self { fs_type: String::new(), source: String::new(), options: Vec::new(), kind: MountKind::Unknown }
    }

    /// Whether the mount has the option, bare or as `name=value`, written exactly so.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }

    /// Says whom a file lock on this mount excludes, as far as type and options tell; a clause for a report.
    pub fn locks_by_options(&self) -> &'static str {
        match &self.kind {
            MountKind::Local => "locks exclude all processes of this host",
            MountKind::Nfs { .. }
                if self.has_option("nolock")
                    || self.has_option("local_lock=all")
                    || self.has_option("local_lock=flock") =>
            {
                "locks exclude this host only (mount option `nolock` or `local_lock`)"
            }
            MountKind::Nfs { .. } if self.kind.same_tick_hole() => {
                "locks exclude all hosts; those of a dead host stay until it boots again"
            }
            MountKind::Nfs { .. } => "locks exclude all hosts; those of a dead host end with its lease",
            MountKind::Lustre if self.has_option("localflock") => {
                "locks exclude this host only (mount option `localflock`)"
            }
            MountKind::Lustre if self.has_option("noflock") => "there are no locks (mount option `noflock`)",
            MountKind::Lustre if self.has_option("flock") => "locks exclude all hosts",
            MountKind::BeeGfs => "locks exclude this host only, unless `tuneUseGlobalFileLocks` is set for the client",
            MountKind::Ceph | MountKind::Gluster => {
                "locks exclude all hosts; those of a dead host end within about a minute"
            }
            MountKind::MooseFs => "locks exclude all hosts; those of a dead host stay",
            MountKind::Sshfs => "locks exclude nobody on other hosts",
            MountKind::Lustre | MountKind::Gpfs | MountKind::Unknown => {
                "the mount does not say whom locks exclude; only a test with two hosts does"
            }
        }
    }
}

/// The parts of one line of `mountinfo` that matter here.
struct Line {
    device: (u32, u32),
    point: PathBuf,
    fs_type: String,
    source: String,
    options: Vec<String>,
}

impl Line {
    /// Reads `id parent major:minor root point options [optional fields] - type source super-options`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let (major, minor) = fields.nth(2)?.split_once(':')?;
        let point = unescape(fields.nth(1)?);
        let options = fields.next()?;
        // The number of optional fields varies; a lone dash ends them.
        fields.by_ref().find(|field| *field == "-")?;
        let fs_type = fields.next()?;
        let source = fields.next()?;
        let all = options.split(',').chain(fields.next().unwrap_or_default().split(','));
        Some(Self {
            device: (major.parse().ok()?, minor.parse().ok()?),
            point: PathBuf::from(OsString::from_vec(point)),
            fs_type: text(fs_type),
            source: text(source),
            options: all.filter(|o| !o.is_empty()).map(text).collect(),
        })
    }

    fn into_info(self) -> MountInfo {
        let kind = MountKind::of(&self.fs_type, &self.source, &self.options);
        MountInfo { fs_type: self.fs_type, source: self.source, options: self.options, kind }
    }
}

fn text(field: &str) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// Undoes the kernel's `\040` for space, tab, newline, backslash and `#`.
fn unescape(field: &str) -> Vec<u8> {
    let mut rest = field.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) = (first, after) {
            bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the mount of a file below `/q` where `tail` describes what is mounted there.
    fn mounted(tail: &str) -> MountInfo {
        let text = format!(
            "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
             90 22 0:52 / /q rw,nosuid shared:7 master:3 - {tail}\n\
             91 22 0:60 / /qq rw - proc proc rw\n"
        );
        MountInfo::find(&text, Path::new("/q/jobs/a"), Some((0, 52))).expect("a mount")
    }

    #[track_caller]
    fn check(tail: &str, kind: &MountKind, locks: &str) {
        let info = mounted(tail);
        assert_eq!(&info.kind, kind, "{tail}");
        assert!(info.locks_by_options().contains(locks), "{tail}: {}", info.locks_by_options());
    }

    fn nfs(version: &str) -> MountKind {
        MountKind::Nfs { version: version.to_owned() }
    }

    #[test]
    fn nfs_is_told_apart_by_version() {
        let v3 = "nfs fs1:/export/q rw,vers=3,rsize=1048576,hard,proto=tcp,local_lock=none,addr=192.0.2.7";
        check(v3, &nfs("3"), "all hosts; those of a dead host stay");
        check("nfs4 fs1:/q rw,vers=4.2,hard,sec=sys,local_lock=none", &nfs("4.2"), "end with its lease");
        check("nfs4 fs1:/q rw,hard", &nfs("4"), "all hosts");
        check("nfs fs1:/q rw,hard", &nfs("3"), "all hosts");
        assert!(nfs("3").same_tick_hole());
        assert!(!nfs("4.2").same_tick_hole());
        assert!(!nfs("4.2").needs_token_sync());
        assert!(nfs("4.2").syncs_directories_itself());
    }

    #[test]
    fn nfs_with_local_locks_is_said_to_have_none_across_hosts() {
        check("nfs fs1:/q rw,vers=3,nolock,local_lock=all", &nfs("3"), "this host only");
        check("nfs4 fs1:/q rw,vers=4.1,local_lock=flock", &nfs("4.1"), "this host only");
        check("nfs4 fs1:/q rw,vers=4.1,local_lock=posix", &nfs("4.1"), "all hosts");
    }

    #[test]
    fn lustre_is_told_apart_by_its_lock_option() {
        check("lustre 10.0.0.1@o2ib:/scratch rw,flock,lazystatfs", &MountKind::Lustre, "exclude all hosts");
        check("lustre 10.0.0.1@o2ib:/scratch rw,localflock", &MountKind::Lustre, "this host only");
        check("lustre 10.0.0.1@o2ib:/scratch rw,noflock", &MountKind::Lustre, "no locks");
        check("lustre 10.0.0.1@o2ib:/scratch rw", &MountKind::Lustre, "does not say");
    }

    #[test]
    fn cluster_file_systems_are_known() {
        check("beegfs beegfs_nodev rw,cfgFile=/etc/beegfs/client.conf,_netdev", &MountKind::BeeGfs, "this host only");
        check("gpfs gpfs01 rw", &MountKind::Gpfs, "does not say");
        check("fuse.ceph-fuse ceph-fuse rw,user_id=0,group_id=0,allow_other", &MountKind::Ceph, "all hosts");
        check("ceph 10.0.0.1:6789:/ rw,name=admin,secret=<hidden>,acl", &MountKind::Ceph, "all hosts");
        check("fuse.glusterfs g1:/vol0 rw,allow_other,max_read=131072", &MountKind::Gluster, "all hosts");
        check("fuse mfs#mfsmaster:9421 rw,allow_other", &MountKind::MooseFs, "dead host stay");
        check("fuse mfs\\043mfsmaster:9421 rw,allow_other", &MountKind::MooseFs, "dead host stay");
        check("fuse.sshfs me@login:/scratch rw", &MountKind::Sshfs, "nobody");
        assert!(MountKind::Ceph.needs_token_sync());
        assert!(!MountKind::BeeGfs.needs_token_sync());
    }

    #[test]
    fn local_file_systems_are_known_and_others_get_the_careful_answer() {
        for fs_type in ["ext4", "xfs", "btrfs", "tmpfs", "overlay"] {
            let info = mounted(&format!("{fs_type} /dev/sda1 rw,seclabel"));
            assert!(info.kind.is_local(), "{fs_type}");
            assert!(info.kind.needs_token_sync());
            assert!(!info.kind.drops_names());
        }
        check("fuse.strange x rw", &MountKind::Unknown, "does not say");
        assert!(!MountKind::Unknown.is_local());
        assert!(MountKind::Unknown.drops_names(), "what is not known is not trusted");
    }

    #[test]
    fn options_are_those_of_the_mount_then_those_of_the_file_system() {
        assert_eq!(mounted("xfs /dev/sdb rw,attr2").options, ["rw", "nosuid", "rw", "attr2"]);
    }

    const NESTED: &str = "\
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:40 / /data\\040sets rw - nfs4 a:/ rw,vers=4.2
31 30 0:41 / /data\\040sets/q rw - nfs4 b:/ rw,vers=4.1
a line that makes no sense
32 31 0:42 / /data\\040sets/q rw - tmpfs over rw";

    #[track_caller]
    fn source_of(path: &str, device: Option<(u32, u32)>) -> String {
        MountInfo::find(NESTED, Path::new(path), device).expect("a mount").source
    }

    #[test]
    fn the_longest_mount_point_wins_and_of_two_the_later() {
        assert_eq!(source_of("/data sets/x", None), "a:/");
        assert_eq!(source_of("/data sets/q/jobs", None), "over");
        assert_eq!(source_of("/data setsq", None), "/dev/vda");
    }

    #[test]
    fn the_device_number_decides_where_it_matches() {
        assert_eq!(source_of("/data sets/q/jobs", Some((0, 41))), "b:/");
        assert_eq!(source_of("/data sets/q/jobs", Some((7, 7))), "over");
    }
}
