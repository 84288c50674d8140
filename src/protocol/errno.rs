//! The names of system errors, as records and messages spell them (`ENOENT`): numbers differ between architectures.

/// Names the system error `errno`; one without a name here is `E` and its number.
pub fn name(errno: i32) -> String {
    let name = match errno {
        libc::E2BIG => "E2BIG",
        libc::EACCES => "EACCES",
        libc::EAGAIN => "EAGAIN",
        libc::EBADF => "EBADF",
        libc::EBUSY => "EBUSY",
        libc::ECHILD => "ECHILD",
        libc::ECONNRESET => "ECONNRESET",
        libc::EDQUOT => "EDQUOT",
        libc::EEXIST => "EEXIST",
        libc::EFAULT => "EFAULT",
        libc::EFBIG => "EFBIG",
        libc::EINTR => "EINTR",
        libc::EINVAL => "EINVAL",
        libc::EIO => "EIO",
        libc::EISDIR => "EISDIR",
        libc::ELIBBAD => "ELIBBAD",
        libc::ELOOP => "ELOOP",
        libc::EMFILE => "EMFILE",
        libc::EMLINK => "EMLINK",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENFILE => "ENFILE",
        libc::ENODATA => "ENODATA",
        libc::ENODEV => "ENODEV",
        libc::ENOENT => "ENOENT",
        libc::ENOEXEC => "ENOEXEC",
        libc::ENOLCK => "ENOLCK",
        libc::ENOMEM => "ENOMEM",
        libc::ENOSPC => "ENOSPC",
        libc::ENOSYS => "ENOSYS",
        libc::ENOTBLK => "ENOTBLK",
        libc::ENOTCONN => "ENOTCONN",
        libc::ENOTDIR => "ENOTDIR",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ENOTTY => "ENOTTY",
        libc::ENXIO => "ENXIO",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EPERM => "EPERM",
        libc::EPIPE => "EPIPE",
        libc::EREMOTEIO => "EREMOTEIO",
        libc::EROFS => "EROFS",
        libc::ESHUTDOWN => "ESHUTDOWN",
        libc::ESPIPE => "ESPIPE",
        libc::ESRCH => "ESRCH",
        libc::ESTALE => "ESTALE",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ETXTBSY => "ETXTBSY",
        libc::EXDEV => "EXDEV",
        other => return format!("E{other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_errors_have_their_names() {
        assert_eq!(name(libc::ENOENT), "ENOENT");
        assert_eq!(name(libc::EDQUOT), "EDQUOT");
        assert_eq!(name(libc::EWOULDBLOCK), "EAGAIN");
    }

    #[test]
    fn an_unusual_error_is_a_number() {
        assert_eq!(name(4095), "E4095");
    }
}
