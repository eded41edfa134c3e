//! The limit of open files.

use std::io;

use rustix::process::Resource;

/// Sets the soft limit of open files to the hard limit.
pub(crate) fn raise_open_files_limit() -> io::Result<()> {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}
