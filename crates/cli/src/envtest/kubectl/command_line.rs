//! Words and flags of a command line of kubectl.

use std::collections::BTreeMap;

/// The flags with a value that are understood; other ones are left to a real kubectl.
const FLAGS: &[&str] = &[
    "certificate-authority",
    "client-certificate",
    "client-key",
    "cluster",
    "context",
    "kubeconfig",
    "namespace",
    "request-timeout",
    "server",
    "token",
    "user",
];

/// The command line of kubectl, of flags that are understood only.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// The arguments that are no flags.
    pub(super) words: Vec<String>,
    flags: BTreeMap<&'static str, String>,
}

impl CommandLine {
    /// Reads arguments; `None` if a flag is not understood.
    pub(super) fn parse(arguments: &[String]) -> Option<Self> {
        let mut words = Vec::new();
        let mut flags = BTreeMap::new();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let flag = match argument.as_str() {
                "-n" => Some("namespace"),
                "-s" => Some("server"),
                text if text.starts_with("--") => text.strip_prefix("--"),
                text if text.starts_with('-') => return None,
                _ => None,
            };
            let Some(flag) = flag else {
                words.push(argument.clone());
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (flag, arguments.next()?.clone()),
            };
            let name = FLAGS.iter().find(|known| **known == name)?;
            flags.insert(*name, value);
        }
        Some(Self { words, flags })
    }

    /// The value of a flag.
    pub(super) fn flag(&self, name: &str) -> Option<&str> {
        self.flags.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<CommandLine> {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        CommandLine::parse(&arguments)
    }

    #[test]
    fn flags_are_accepted_anywhere_and_unknown_ones_left_to_kubectl() {
        let line = parse("--server=https://a -n x get ns default --kubeconfig f").expect("read");
        assert_eq!(line.words, ["get", "ns", "default"]);
        assert_eq!(line.flag("server"), Some("https://a"));
        assert_eq!(line.flag("namespace"), Some("x"));
        assert_eq!(line.flag("kubeconfig"), Some("f"));
        for line in [
            "get ns default -o yaml",
            "get ns -A",
            "get ns --watch=true",
            "--server",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
