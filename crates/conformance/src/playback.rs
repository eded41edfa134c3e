//! A server that returns the recorded responses: a test of names and comparison.
//! Input: one scenario. Output: its recorded responses in order, with values instead of names.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use regex::{Captures, Regex};

use crate::{
    compare::compare,
    corpus::Corpus,
    json::Json,
    run::{Options, run},
    scenario::{Action, Scenario},
    transport::{Reply, Transport, TransportError},
};

const ID: &str = "5e1f7e57q1q2";

static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"<(rv|uid|token|ip|port|gen|volume|time|jwt|list|age)(\d*)>")
        .expect("the pattern is sound")
});

struct Playback {
    /// Answers still to give, the next one last.
    answers: Mutex<Vec<Json>>,
}

impl Playback {
    fn of(scenario: &Scenario) -> Self {
        let mut answers = Vec::new();
        if !scenario.no_namespace {
            answers.extend([
                Json::map([("status", Json::number(201))]),
                Json::map([("status", Json::number(201))]),
            ]);
        }
        let mut watches = HashMap::new();
        for step in &scenario.steps {
            let answer = unnamed(&step.comparison.expect, "", &generators(scenario));
            match &step.action {
                Action::Request(_) => answers.push(answer),
                Action::Watch { name, .. } => {
                    watches.insert(name, answers.len());
                    answers.push(answer);
                }
                Action::Collect { name, .. } => {
                    if let (Json::Map(opened), Some(events)) =
                        (&mut answers[watches[name]], answer.get("events"))
                    {
                        opened.insert("events".to_owned(), events.clone());
                    }
                }
            }
        }
        answers.reverse();
        Self {
            answers: Mutex::new(answers),
        }
    }
}

impl Transport for Playback {
    fn token(&self) -> Option<&str> {
        None
    }

    async fn send(&self, _: Request<Bytes>) -> Result<Reply, TransportError> {
        let answer = self
            .answers
            .lock()
            .expect("nothing panics while it holds the lock")
            .pop();
        answer
            .map(|answer| reply(&answer))
            .ok_or_else(|| TransportError("more requests than recorded responses".to_owned()))
    }
}

fn reply(answer: &Json) -> Reply {
    let mut response = Response::builder().status(
        answer
            .get("status")
            .map(Json::unquoted)
            .expect("an answer has a status")
            .as_str(),
    );
    if let Some(Json::Map(headers)) = answer.get("headers") {
        for (name, value) in headers {
            for value in value.unquoted().split(" | ") {
                response = response.header(
                    name,
                    value
                        .chars()
                        .map(|c| u32::from(c) as u8)
                        .collect::<Vec<u8>>(),
                );
            }
        }
    }
    let body = match (answer.get("events"), answer.get("body")) {
        (Some(Json::List(events)), _) => events.iter().map(|event| format!("{event}\n")).collect(),
        (_, Some(Json::Text(text))) => text.clone(),
        (_, Some(Json::Null) | None) => String::new(),
        (_, Some(body)) => body.to_string(),
    };
    response
        .body(
            Full::from(body)
                .map_err(|never| match never {})
                .boxed_unsync(),
        )
        .expect("recorded values can be rendered")
}

/// The `generateName` behind each generated name.
fn generators(scenario: &Scenario) -> HashMap<String, String> {
    fn look(json: &Json, found: &mut HashMap<String, String>) {
        match json {
            Json::Map(map) => {
                if let (Some(Json::Text(base)), Some(Json::Text(name))) =
                    (map.get("generateName"), map.get("name"))
                {
                    found.insert(name.clone(), base.clone());
                }
                map.values().for_each(|value| look(value, found));
            }
            Json::List(list) => list.iter().for_each(|value| look(value, found)),
            _ => {}
        }
    }
    let mut found = HashMap::new();
    scenario
        .steps
        .iter()
        .for_each(|step| look(&step.comparison.expect, &mut found));
    found
}

/// The answer with a value in place of every name.
fn unnamed(json: &Json, key: &str, generators: &HashMap<String, String>) -> Json {
    match json {
        Json::Map(map) => Json::Map(
            map.iter()
                .map(|(key, value)| (valued(key, generators), unnamed(value, key, generators)))
                .collect(),
        ),
        Json::List(list) => Json::List(
            list.iter()
                .map(|value| unnamed(value, key, generators))
                .collect(),
        ),
        Json::Text(text) if matches!(key, "nodePort" | "healthCheckNodePort") => Json::number(
            valued(text, generators)
                .parse::<u64>()
                .expect("a port is a number"),
        ),
        Json::Text(text) => Json::Text(valued(text, generators)),
        value => value.clone(),
    }
}

fn valued(text: &str, generators: &HashMap<String, String>) -> String {
    let value = |found: &Captures<'_>| {
        let number: u32 = found[2].parse().unwrap_or_default();
        match &found[1] {
            "rv" => format!("{}", 10_000 + number),
            "uid" => format!("0a1b2c3d-0000-4000-8000-{number:012x}"),
            "token" => format!("next-{number}"),
            "ip" => format!("10.0.9.{number}"),
            "port" => format!("{}", 30_000 + number),
            "gen" => format!(
                "{}x{number:04}",
                generators.get(&found[0]).map_or("", String::as_str)
            ),
            "volume" => format!("kube-api-access-x{number:04}"),
            "time" => "2026-01-02T03:04:05Z".to_owned(),
            "jwt" => "eyJh.eyJi.c".to_owned(),
            "age" => "5m".to_owned(),
            _ => "99999".to_owned(),
        }
    };
    NAMED
        .replace_all(text, value)
        .replace("{ns}", &format!("v{ID}"))
        .replace("{id}", ID)
}

/// Whether all of its responses are recorded in full: names depend on all earlier responses.
fn is_whole(scenario: &Scenario) -> bool {
    scenario.steps.iter().all(|step| {
        step.comparison.only.is_none() && !step.comparison.ignore.iter().any(|path| path == "body")
    })
}

#[tokio::test(start_paused = true)]
async fn recording_played_back_passes() {
    let corpus = Corpus::of_repository()
        .expect("the recordings are sound")
        .filtered(|recorded| is_whole(&recorded.scenario));
    assert!(
        corpus.scenarios.len() > 500,
        "most scenarios are recorded in full"
    );
    let mut found = Vec::new();
    for recorded in &corpus.scenarios {
        let scenario = &recorded.scenario;
        match run(&Playback::of(scenario), scenario, ID, &Options::nearby()).await {
            Ok(answers) => {
                for (step, answer) in scenario.steps.iter().zip(&answers) {
                    found.extend(
                        compare(&step.comparison, answer, &[])
                            .into_iter()
                            .map(|difference| format!("{}: {difference}", recorded.title())),
                    );
                }
            }
            Err(error) => found.push(format!("{}: {error}", recorded.title())),
        }
    }
    assert!(
        found.is_empty(),
        "{} differences:\n{}",
        found.len(),
        found.join("\n")
    );
}
