//! The format levels of data that this program supports.

use std::io::{self, ErrorKind};

/// The oldest format level that this program reads.
pub const FORMAT_LEVEL_MIN: u32 = 1;
/// The newest format level that this program reads and writes.
pub const FORMAT_LEVEL_MAX: u32 = 1;

/// Fails if this program cannot read a level.
pub(crate) fn check_format_level(level: u32) -> io::Result<()> {
    if (FORMAT_LEVEL_MIN..=FORMAT_LEVEL_MAX).contains(&level) {
        return Ok(());
    }
    let message = format!(
        "the data has format level {level}, but this program supports {FORMAT_LEVEL_MIN} to \
         {FORMAT_LEVEL_MAX}; use another version of the program"
    );
    Err(io::Error::new(ErrorKind::Unsupported, message))
}
