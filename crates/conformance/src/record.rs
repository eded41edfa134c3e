//! Records the responses of a server in scenarios.
//! Input: a file of scenarios, with or without responses. Output: the same file with the
//! responses of the server.
//! Guarantees: scenarios run one after the other; values that are not compared are not recorded.

use std::{fs, io, path::Path};

use crate::{
    json::Json,
    run::{Options, run},
    scenario::Scenario,
    transport::{Transport, TransportError},
};

/// Writes the answers of a server into a file, and returns how many scenarios it has.
///
/// # Errors
/// A file that has no scenarios, or a server that cannot be reached.
pub async fn record<T: Transport>(
    file: &Path,
    transport: &T,
    options: &Options,
) -> Result<usize, TransportError> {
    let unread = |e: io::Error| TransportError::new(&format!("cannot read {}", file.display()), e);
    let unsound = |e: serde_json::Error| {
        TransportError::new(&format!("no scenarios in {}", file.display()), e)
    };
    let bytes = fs::read(file).map_err(unread)?;
    let Json::List(mut written) = Json::parse(&bytes).map_err(unsound)? else {
        return Err(TransportError(format!("{} is no list", file.display())));
    };
    written.iter_mut().for_each(expect_nothing);
    let all = Json::List(written.clone()).to_string();
    let scenarios: Vec<Scenario> = serde_json::from_str(&all).map_err(unsound)?;
    for (number, (scenario, written)) in scenarios.iter().zip(&mut written).enumerate() {
        let id = format!("{}q{number}", options.stamp);
        let answers = run(transport, scenario, &id, options).await?;
        let steps = written.at_mut("steps");
        let Some(Json::List(steps)) = steps else {
            continue;
        };
        for ((step, written), answer) in scenario.steps.iter().zip(steps).zip(answers) {
            let comparison = &step.comparison;
            let kept = kept(comparison.only.as_deref(), &comparison.ignore, answer);
            if let Json::Map(map) = written {
                map.insert("expect".to_owned(), kept);
            }
        }
    }
    let lines: Vec<String> = written.iter().map(Json::to_string).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    let unwritten =
        |e: io::Error| TransportError::new(&format!("cannot write {}", file.display()), e);
    fs::write(file, text).map_err(unwritten)?;
    Ok(scenarios.len())
}

/// Gives steps that were never recorded an answer, so that the scenario is complete.
fn expect_nothing(scenario: &mut Json) {
    let Some(Json::List(steps)) = scenario.at_mut("steps") else {
        return;
    };
    for step in steps {
        if let Json::Map(map) = step {
            map.entry("expect".to_owned()).or_insert(Json::Null);
        }
    }
}

/// What is worth keeping of an answer: not the bulk that is never compared.
fn kept(only: Option<&[String]>, ignore: &[String], mut answer: Json) -> Json {
    if ignore.iter().any(|path| path == "body") {
        answer.leave_out("body");
        return answer;
    }
    let Some(only) = only else {
        return answer;
    };
    let Some(body) = answer
        .get("body")
        .filter(|body| matches!(body, Json::Map(_)))
    else {
        return answer;
    };
    let mut small = Json::map([]);
    for path in only {
        // A path that is not there must be seen to be absent, so the whole body is kept.
        let Some(value) = body.at(path) else {
            return answer;
        };
        if !put(&mut small, path, value.clone()) {
            return answer;
        }
    }
    if let Json::Map(map) = &mut answer {
        map.insert("body".to_owned(), small);
    }
    answer
}

/// Sets the value at a path of keys; `false` if the path leads through a list.
fn put(target: &mut Json, path: &str, value: Json) -> bool {
    let Json::Map(map) = target else {
        return false;
    };
    match path.split_once('.') {
        None => {
            map.insert(path.to_owned(), value);
            true
        }
        Some((head, rest)) => {
            let below = map.entry(head.to_owned()).or_insert_with(|| Json::map([]));
            !rest.starts_with(|c: char| c.is_ascii_digit()) && put(below, rest, value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Json {
        Json::parse(text.as_bytes()).expect("JSON")
    }

    #[test]
    fn only_compared_fields_are_kept() {
        let answer = || parsed(r#"{"status": 200, "body": {"a": {"b": 1, "c": 2}, "d": [1]}}"#);
        let only = |paths: &[&str]| -> String {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            kept(Some(&paths), &[], answer()).to_string()
        };
        assert_eq!(
            only(&["a.b"]),
            r#"{"status": 200, "body": {"a": {"b": 1}}}"#
        );
        assert_eq!(
            only(&["a.x"]),
            answer().to_string(),
            "absent values are compared too"
        );
        let ignored = kept(None, &["body".to_owned()], answer());
        assert_eq!(ignored.to_string(), r#"{"status": 200}"#);
    }
}
