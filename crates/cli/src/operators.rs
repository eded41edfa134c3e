//! The operators this binary has.
//! In: names on the command line. Out: operators, each once, or what is wrong with the names.

use bellerophon_operator::Operator;

use crate::failure::Failure;

/// All that run once in a cluster, in the order in which help lists them.
pub(crate) const ALL: [Operator; 5] = [
    bellerophon_icecream::OPERATOR,
    bellerophon_secsynch::OPERATOR,
    bellerophon_simple::OPERATOR,
    bellerophon_fruit::OPERATOR,
    bellerophon_reboot::OPERATOR,
];

/// Those that run on nodes, and only where they are named.
const ON_NODES: [Operator; 1] = [bellerophon_reboot::AGENT];

/// The operators of a list such as `icecream,simple`; `all` are all, `none` is none.
///
/// # Errors
/// A name that no operator has.
pub(crate) fn named(list: &str) -> Result<Vec<Operator>, Failure> {
    let mut found: Vec<Operator> = Vec::new();
    for name in list.split(',').map(str::trim) {
        let wanted: Vec<Operator> = match name {
            "all" => ALL.to_vec(),
            "none" => Vec::new(),
            name => vec![
                *ALL.iter()
                    .chain(&ON_NODES)
                    .find(|operator| operator.name == name)
                    .ok_or_else(|| unknown(name))?,
            ],
        };
        for operator in wanted {
            if !found.iter().any(|known| known.name == operator.name) {
                found.push(operator);
            }
        }
    }
    Ok(found)
}

fn unknown(name: &str) -> Failure {
    let names: Vec<&str> = ALL
        .iter()
        .chain(&ON_NODES)
        .map(|operator| operator.name)
        .collect();
    Failure::Misused(format!("there is no operator {name:?}"))
        .advising(&format!("name one or more of {}, or all", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_each_operator_comes_once() {
        let names = |list: &str| {
            named(list).map(|found| {
                found
                    .iter()
                    .map(|operator| operator.name)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(names("simple, icecream"), Ok(vec!["simple", "icecream"]));
        assert_eq!(
            names("icecream,all"),
            Ok(vec!["icecream", "secsynch", "simple", "fruit", "reboot"])
        );
        assert_eq!(names("none"), Ok(vec![]));
        let Err(Failure::Misused(why)) = names("icecream,vanilla") else {
            panic!("there is no vanilla")
        };
        assert_eq!(
            why,
            "there is no operator \"vanilla\"; name one or more of icecream, secsynch, simple, fruit, reboot, reboot-agent, or all"
        );
    }
}
