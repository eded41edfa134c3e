//! Archives: tar in the format ustar, compressed by gzip.
//!
//! Guarantee: the same entries give the same bytes. The time of files is 1970, their owner is root.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};

/// The size of headers, and what contents are padded to.
const BLOCK: usize = 512;

/// The longest path of a header without a prefix.
const PATH_MAX: usize = 100;

/// A file of an archive.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) content: Vec<u8>,
    pub(super) mode: Mode,
}

/// The permissions of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// Read by everyone, written by the owner.
    File,
    /// Executed by everyone.
    Program,
}

/// An archive of files.
///
/// # Errors
/// A path is too long.
pub(super) fn tar_gz(entries: &[Entry]) -> Result<Vec<u8>, String> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let failed = |error| format!("cannot compress: {error}");
    for entry in entries {
        encoder.write_all(&header(entry)?).map_err(failed)?;
        encoder.write_all(&entry.content).map_err(failed)?;
        let padding = entry.content.len().next_multiple_of(BLOCK) - entry.content.len();
        encoder.write_all(&[0; BLOCK][..padding]).map_err(failed)?;
    }
    // Two empty blocks are the end.
    encoder.write_all(&[0; 2 * BLOCK]).map_err(failed)?;
    encoder.finish().map_err(failed)
}

/// The header of POSIX.1-1988: fields at fixed offsets, numbers in octal.
fn header(entry: &Entry) -> Result<[u8; BLOCK], String> {
    let Entry {
        path,
        content,
        mode,
    } = entry;
    if path.len() > PATH_MAX {
        return Err(format!("{path}: longer than {PATH_MAX} bytes"));
    }
    let mode = match mode {
        Mode::File => 0o644,
        Mode::Program => 0o755,
    };
    let mut header = [0; BLOCK];
    let mut put = |offset: usize, bytes: &[u8]| {
        header[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(0, path.as_bytes());
    put(100, format!("{mode:07o}\0").as_bytes());
    put(108, b"0000000\0"); // user
    put(116, b"0000000\0"); // group
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0"); // time
    put(148, b"        "); // checksum, computed with spaces
    put(156, b"0"); // regular file
    put(257, b"ustar\x0000");
    put(265, b"root\0");
    put(297, b"root\0");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    fn entries() -> Vec<Entry> {
        vec![
            Entry {
                path: "top/program".into(),
                content: b"#!/bin/sh\necho runs\n".to_vec(),
                mode: Mode::Program,
            },
            Entry {
                path: "top/man/page.1".into(),
                content: vec![b'x'; 3 * BLOCK],
                mode: Mode::File,
            },
            Entry {
                path: "top/empty".into(),
                content: Vec::new(),
                mode: Mode::File,
            },
        ]
    }

    #[test]
    fn archive_is_unpacked_by_tar() {
        let directory =
            std::env::temp_dir().join(format!("bellerophon-archive-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("created");
        let file = directory.join("a.tar.gz");
        fs::write(&file, tar_gz(&entries()).expect("an archive")).expect("written");
        let unpacked = Command::new("tar")
            .args(["--no-same-owner", "-xzf"])
            .arg(&file)
            .arg("-C")
            .arg(&directory)
            .output()
            .expect("tar starts");
        assert!(unpacked.status.success(), "{unpacked:?}");
        for Entry { path, content, .. } in entries() {
            assert_eq!(
                fs::read(directory.join(&path)).expect("unpacked"),
                content,
                "{path}"
            );
        }
        let program = Command::new(directory.join("top/program")).output();
        assert_eq!(program.expect("it is executable").stdout, b"runs\n");
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn archive_does_not_depend_on_the_time() {
        let [first, second] = [(); 2].map(|()| tar_gz(&entries()).expect("an archive"));
        assert_eq!(first, second);
        // Bytes 4 to 7 of gzip are the time.
        assert_eq!(first[4..8], [0; 4]);
    }

    #[test]
    fn long_paths_are_errors() {
        let entry = Entry {
            path: "a".repeat(101),
            content: Vec::new(),
            mode: Mode::File,
        };
        assert!(tar_gz(&[entry]).is_err());
    }
}
