//! One line of a log file.

use jiff::Timestamp;

/// An output stream of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// A parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) time: Timestamp,
    pub(super) stream: Stream,
    pub(super) partial: bool,
    pub(super) text: &'a [u8],
}

/// A time with nanoseconds in fixed width.
pub(super) fn format_time(time: Timestamp) -> String {
    format!("{time:.9}")
}

/// Appends a line. Mirrors the format of containerd's `redirectLogs`.
pub(super) fn append(buffer: &mut Vec<u8>, time: &str, stream: Stream, partial: bool, text: &[u8]) {
    buffer.extend(time.as_bytes());
    buffer.push(b' ');
    buffer.extend(stream.as_str().as_bytes());
    buffer.extend(if partial { b" P " } else { b" F " });
    buffer.extend(text);
    buffer.push(b'\n');
}

/// Parses a line without its end. Mirrors `parseCRILog`; `None` if it is malformed.
pub(super) fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let stream = match fields.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    // Further tags may follow, separated by a colon.
    let tag = fields.next()?.split(|byte| *byte == b':').next()?;
    let text = fields.next()?;
    Some(Line {
        time,
        stream,
        partial: tag == b"P",
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_as_written() {
        let time: Timestamp = "2026-11-17T10:00:00.000000120Z".parse().unwrap();
        let cases: [(Stream, bool, &[u8]); 3] = [
            (Stream::Stdout, false, b"a  b "),
            (Stream::Stderr, true, b""),
            (Stream::Stdout, true, b"\xff\x00"),
        ];
        for (stream, partial, text) in cases {
            let mut buffer = Vec::new();
            append(&mut buffer, &format_time(time), stream, partial, text);
            assert_eq!(buffer.pop(), Some(b'\n'));
            let expected = Line {
                time,
                stream,
                partial,
                text,
            };
            assert_eq!(parse(&buffer), Some(expected));
        }
        let malformed = ["", "2026", "2026-11-17T10:00:00Z stdin F x", "x stdout F x"];
        for line in malformed {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn time_has_fixed_width() {
        let time: Timestamp = "2026-11-17T10:00:00Z".parse().unwrap();
        assert_eq!(format_time(time), "2026-11-17T10:00:00.000000000Z");
    }
}
