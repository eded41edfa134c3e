//! Expansion of `$(VAR)` in command, args and environment, by the rules of Kubernetes.
//!
//! `$(NAME)` is replaced by the value of a known variable and stays as written for an unknown one.
//! `$$` is a `$` that begins no reference. Values are not expanded again.

/// Expands references in a text. Mirrors `Expand` of Kubernetes' `expansion` package.
///
/// ```
/// use bellerophon_process_runtime::expansion::expand;
///
/// let lookup = |name: &str| (name == "PORT").then_some("8080");
/// assert_eq!(expand("--port=$(PORT)", lookup), "--port=8080");
/// assert_eq!(expand("$$(PORT) $(HOST)", lookup), "$(PORT) $(HOST)");
/// ```
pub fn expand<V: AsRef<str>>(text: &str, lookup: impl Fn(&str) -> Option<V>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        expanded.push_str(&rest[..start]);
        let after = &rest[start + 1..];
        let reference = after
            .strip_prefix('(')
            .and_then(|name| name.find(')').map(|end| name.split_at(end)));
        if let Some((name, end)) = reference {
            match lookup(name) {
                Some(value) => expanded.push_str(value.as_ref()),
                None => {
                    expanded.push_str("$(");
                    expanded.push_str(name);
                    expanded.push(')');
                }
            }
            rest = &end[1..];
        } else if let Some(escaped) = after.strip_prefix('$') {
            expanded.push('$');
            rest = escaped;
        } else {
            // An incomplete reference is skipped with its parenthesis.
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The cases of Kubernetes' own tests.
    const CASES: &[(&str, &str)] = &[
        ("$(VAR_A)", "A"),
        ("$(VAR_A)-$(VAR_A)", "A-A"),
        ("$(VAR_A)-1", "A-1"),
        ("___$(VAR_B)___", "___B___"),
        ("___$(VAR_C)", "___C"),
        ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
        ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
        ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
        ("f000-$$VAR_A", "f000-$VAR_A"),
        (r"foo\$(VAR_C)bar", r"foo\Cbar"),
        (r"foo\\$(VAR_C)bar", r"foo\\Cbar"),
        (r"foo\\\\$(VAR_A)bar", r"foo\\\\Abar"),
        ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
        ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
        ("foo$(VAR_EMPTY)bar", "foobar"),
        ("foo$(VAR_Awhoops!", "foo$(VAR_Awhoops!"),
        ("f00__(VAR_A)__", "f00__(VAR_A)__"),
        ("$?_boo_$!", "$?_boo_$!"),
        ("$VAR_A", "$VAR_A"),
        ("$(VAR_DNE)", "$(VAR_DNE)"),
        ("$$$$$$(BIG_MONEY)", "$$$(BIG_MONEY)"),
        ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
        ("$$$$$$$(GOOD_ODDS)", "$$$$(GOOD_ODDS)"),
        ("$$$$$$$(VAR_A)", "$$$A"),
        ("$VAR_A)", "$VAR_A)"),
        ("${VAR_A}", "${VAR_A}"),
        ("$(VAR_B)_______$(A", "B_______$(A"),
        ("$(VAR_C)_______$(", "C_______$("),
        ("$(VAR_A)foobarzab$", "Afoobarzab$"),
        (r"foo-\$(VAR_A", r"foo-\$(VAR_A"),
        ("--$($($($($--", "--$($($($($--"),
        ("$($($($($--foo$(", "$($($($($--foo$("),
        ("foo0--$($($($(", "foo0--$($($($("),
        ("$(foo$$var)", "$(foo$$var)"),
        ("\n", "\n"),
    ];

    #[test]
    fn cases_of_kubernetes_are_expanded_alike() {
        let context = HashMap::from([
            ("VAR_A", "A"),
            ("VAR_B", "B"),
            ("VAR_C", "C"),
            ("VAR_REF", "$(VAR_A)"),
            ("VAR_EMPTY", ""),
        ]);
        for (text, expected) in CASES {
            let expanded = expand(text, |name| context.get(name));
            assert_eq!(expanded, *expected, "{text}");
        }
    }

    #[test]
    fn variables_refer_to_earlier_ones() {
        let mut known: HashMap<&str, String> = HashMap::new();
        for (name, value) in [("FOO", "bar"), ("ZOO", "$(FOO)-1"), ("BLU", "$(ZOO)-2")] {
            let value = expand(value, |name| known.get(name));
            known.insert(name, value);
        }
        assert_eq!(known["BLU"], "bar-1-2");
    }

    #[test]
    fn text_with_other_characters_stays() {
        assert_eq!(expand("$ä$€(", |_| None::<&str>), "$ä$€(");
    }
}
