//! Container logs: files in the format of the CRI, with rotation, and their readers.
//!
//! A line is `2006-01-02T15:04:05.000000000Z stdout F text`; the tag is `P` if the text is not the
//! end of its line.

mod line;
mod reader;
mod rotation;
mod writer;

pub use self::line::Stream;
pub use self::reader::{LogReader, ReadOptions};
pub use self::rotation::RotationOptions;
pub use self::writer::{ContainerLog, LogUpdates};
