//! Command lines as kube-apiserver and etcd take them.
//!
//! In: arguments. Out: the values of each flag in their order, and warnings.
//!
//! Guarantees: every form of Go's flag packages is read: one or two dashes, `=` or a space before the
//! value, flags without a value, empty arguments. A flag that is unknown is a warning and not an
//! error: an environment whose server exits reports only a timeout.

use std::collections::BTreeMap;

/// A flag that a program knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    name: &'static str,
    value: ValueKind,
    effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    /// A value follows, after `=` or as the next argument.
    Text,
    /// True unless `=false` follows.
    Bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The program implements the flag.
    Honored,
    /// The flag is about something that this program does not have, and nothing is lost without it.
    Meaningless,
    /// The program does not implement the flag.
    Unsupported,
}

impl Flag {
    /// A flag with a value.
    pub(super) const fn text(name: &'static str) -> Self {
        Self {
            name,
            value: ValueKind::Text,
            effect: Effect::Honored,
        }
    }

    /// A flag that may stand alone.
    pub(super) const fn bool(name: &'static str) -> Self {
        Self {
            value: ValueKind::Bool,
            ..Self::text(name)
        }
    }

    /// Its name without dashes.
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the program implements it.
    pub(super) const fn is_honored(&self) -> bool {
        matches!(self.effect, Effect::Honored)
    }

    /// A flag that is read and has no effect.
    pub(super) const fn meaningless(self) -> Self {
        Self {
            effect: Effect::Meaningless,
            ..self
        }
    }

    /// A flag that is read, with a warning that it has no effect.
    pub(super) const fn unsupported(self) -> Self {
        Self {
            effect: Effect::Unsupported,
            ..self
        }
    }
}

/// The flags of a command line.
#[derive(Debug, Default)]
pub(super) struct Flags {
    values: BTreeMap<String, Vec<String>>,
    /// What was not understood, one sentence each.
    pub(super) warnings: Vec<String>,
}

impl Flags {
    /// Reads the arguments of a program that knows these flags.
    pub(super) fn parse(known: &[Flag], arguments: impl IntoIterator<Item = String>) -> Self {
        let mut flags = Self::default();
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            // controller-runtime renders an unset template of old suites as an empty argument.
            if argument.is_empty() {
                continue;
            }
            let name = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-'));
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                flags.warn(format!("unexpected argument {argument:?}; ignored"));
                continue;
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            // Kubernetes reads names with underscores as if they had dashes.
            let name = name.replace('_', "-");
            let flag = known.iter().find(|flag| flag.name == name);
            let value = match (flag, value) {
                (_, Some(value)) => value,
                (Some(flag), None) if flag.value == ValueKind::Text => {
                    arguments.next().unwrap_or_else(|| {
                        flags.warn(format!("flag --{name} has no value; ignored"));
                        String::new()
                    })
                }
                (Some(_), None) => "true".to_owned(),
                (None, None) => arguments
                    .next_if(|next| !next.starts_with('-') && !next.is_empty())
                    .unwrap_or_else(|| "true".to_owned()),
            };
            match flag.map(|flag| flag.effect) {
                None => flags.warn(format!("unknown flag --{name}={value}; ignored")),
                Some(Effect::Unsupported) => {
                    flags.warn(format!("flag --{name}={value} is not supported; ignored"));
                }
                Some(Effect::Honored | Effect::Meaningless) => {}
            }
            flags.values.entry(name).or_default().push(value);
        }
        flags
    }

    /// Records that a part of the command line has no effect.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Whether the flag is given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The value of a flag; the last one if it is repeated. An empty one counts as not given.
    pub(super) fn last(&self, name: &str) -> Option<&str> {
        let value = self.values.get(name)?.last()?;
        (!value.is_empty()).then_some(value)
    }

    /// All values of a flag that may be repeated.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let values = self.values.get(name).into_iter().flatten();
        values.map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All elements of a flag whose values are lists: repeats add up, commas separate.
    pub(super) fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        let elements = self.all(name).flat_map(|value| value.split(','));
        elements
            .map(str::trim)
            .filter(|element| !element.is_empty())
    }

    /// A flag that is true or false; the default if it is not given or has another value.
    pub(super) fn bool(&self, name: &str, default: bool) -> bool {
        match self.last(name) {
            Some("true" | "True" | "TRUE" | "t" | "T" | "1") => true,
            Some("false" | "False" | "FALSE" | "f" | "F" | "0") => false,
            _ => default,
        }
    }

    /// The last value of a key in a flag of pairs, such as `--feature-gates`.
    pub(super) fn pair(&self, name: &str, key: &str) -> Option<&str> {
        let pairs = self.list(name).filter_map(|pair| pair.split_once('='));
        pairs
            .filter(|(k, _)| *k == key)
            .map(|(_, value)| value)
            .last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Flag] = &[
        Flag::text("secure-port"),
        Flag::bool("allow-privileged"),
        Flag::text("feature-gates"),
        Flag::text("max-request-bytes").meaningless(),
        Flag::text("audit-webhook-config-file").unsupported(),
    ];

    fn parse(line: &[&str]) -> Flags {
        Flags::parse(KNOWN, line.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn every_form_of_a_flag_is_read() {
        let port = |line: &[&str]| parse(line).last("secure-port").map(str::to_owned);
        for line in [
            &["--secure-port=7"][..],
            &["-secure-port=7"],
            &["--secure-port", "7"],
            &["-secure-port", "7"],
            &["--secure_port=7"],
            &["--secure-port=6", "--secure-port=7"],
            &["", "--allow-privileged", "--secure-port", "7"],
            &["--unknown", "value", "--secure-port=7"],
            &["--unknown", "--secure-port=7"],
        ] {
            assert_eq!(port(line).as_deref(), Some("7"), "{line:?}");
        }
        assert_eq!(port(&["--secure-port="]), None);
        assert_eq!(port(&[]), None);
    }

    #[test]
    fn flags_that_stand_alone_are_true() {
        let privileged = |line: &[&str]| parse(line).bool("allow-privileged", false);
        assert!(privileged(&["--allow-privileged"]));
        assert!(privileged(&["--allow-privileged", "--secure-port=7"]));
        assert!(!privileged(&["--allow-privileged=false"]));
        assert!(!privileged(&[]));
    }

    #[test]
    fn repeats_add_up_and_commas_split() {
        let flags = parse(&[
            "--feature-gates=A=true,B=false",
            "--feature-gates",
            "A=false",
        ]);
        assert_eq!(
            flags.list("feature-gates").collect::<Vec<_>>(),
            ["A=true", "B=false", "A=false"]
        );
        assert_eq!(flags.pair("feature-gates", "A"), Some("false"));
        assert_eq!(flags.pair("feature-gates", "B"), Some("false"));
        assert_eq!(flags.pair("feature-gates", "C"), None);
    }

    #[test]
    fn what_has_no_effect_is_a_warning() {
        let warnings = |line: &[&str]| parse(line).warnings.join("\n");
        assert_eq!(
            warnings(&["--secure-port=7", "--max-request-bytes=1", ""]),
            ""
        );
        assert_eq!(
            warnings(&["--nonsense=1"]),
            "unknown flag --nonsense=1; ignored"
        );
        assert_eq!(warnings(&["word"]), "unexpected argument \"word\"; ignored");
        assert_eq!(
            warnings(&["--audit-webhook-config-file", "f"]),
            "flag --audit-webhook-config-file=f is not supported; ignored"
        );
        assert_eq!(
            warnings(&["--secure-port"]),
            "flag --secure-port has no value; ignored"
        );
    }
}
