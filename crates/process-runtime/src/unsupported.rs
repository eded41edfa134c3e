//! Systems other than Linux: there are no shims, because they have no subreapers and no pidfds.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;

use tokio::net::UnixStream;

use crate::error::Error;
use crate::frame::Receiver;
use crate::tier::Tier;

/// There is no launcher.
pub(crate) struct Launcher(Infallible);

/// There is no shim.
pub(crate) struct ShimProcess(Infallible);

impl Launcher {
    pub(crate) fn new(_: PathBuf, _: Tier, _: Vec<(String, String)>) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "pods as processes need Linux (subreapers and pidfds)",
        ))
    }

    pub(crate) async fn launch(
        &self,
        _: &[(String, String)],
    ) -> Result<(ShimProcess, UnixStream, Receiver), Error> {
        match self.0 {}
    }
}

impl ShimProcess {
    pub(crate) fn pid(&self) -> i32 {
        match self.0 {}
    }

    pub(crate) async fn ended(&self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn kill(&self) {
        match self.0 {}
    }
}

pub(crate) fn kill_with_environment(_: &str, _: &str) -> io::Result<usize> {
    Ok(0)
}

pub(crate) fn with_environment(_: &str, _: &str) -> io::Result<Vec<rustix::process::Pid>> {
    Ok(Vec::new())
}

pub(crate) fn wildcard_listeners(_: &str, _: &str) -> io::Result<BTreeSet<u16>> {
    Ok(BTreeSet::new())
}

pub(crate) fn listening_ports(_: i32) -> io::Result<BTreeSet<u16>> {
    Ok(BTreeSet::new())
}
