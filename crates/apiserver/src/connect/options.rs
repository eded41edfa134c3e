//! Options of the connect subresources.
//! In: the query of a request. Out: the query that the kubelet gets.

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::FieldError,
    time::Time,
};

use super::url::encode_query;
use crate::http::query::Query;

/// `PodLogOptions`, without the container.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogOptions {
    follow: bool,
    previous: bool,
    timestamps: bool,
    since_seconds: Option<i64>,
    since_time: Option<Time>,
    tail_lines: Option<i64>,
    limit_bytes: Option<i64>,
}

impl LogOptions {
    /// Reads and validates the options. Mirrors `ValidatePodLogOptions`.
    ///
    /// # Errors
    /// 400 for a value that cannot be read, 422 for one that is out of range.
    pub(super) fn read(query: &Query, pod: &str) -> Result<Self, ApiError> {
        let options = Self {
            follow: query.flag("follow"),
            previous: query.flag("previous"),
            timestamps: query.flag("timestamps"),
            since_seconds: query.integer("sinceSeconds")?,
            since_time: query.get("sinceTime").map(since_time).transpose()?,
            tail_lines: query.integer("tailLines")?,
            limit_bytes: query.integer("limitBytes")?,
        };
        let mut errors = Vec::new();
        if let Some(lines) = options.tail_lines.filter(|lines| *lines < 0) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid("tailLines", lines, detail));
        }
        if let Some(bytes) = options.limit_bytes.filter(|bytes| *bytes < 1) {
            errors.push(FieldError::invalid("limitBytes", bytes, POSITIVE));
        }
        match (options.since_seconds, options.since_time) {
            (Some(_), Some(_)) => errors.push(FieldError::forbidden(
                "",
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            )),
            (Some(seconds), None) if seconds < 1 => {
                errors.push(FieldError::invalid("sinceSeconds", seconds, POSITIVE));
            }
            _ => {}
        }
        if query.has("stream") {
            errors.push(FieldError::forbidden("stream", "may not be specified"));
        }
        ApiError::from_fields(GroupKind::new("", "PodLogOptions"), pod, errors)?;
        Ok(options)
    }

    /// The query of `/containerLogs`.
    pub(super) fn to_query(&self) -> String {
        let mut parameters = Vec::new();
        let flags = [
            ("follow", self.follow),
            ("previous", self.previous),
            ("timestamps", self.timestamps),
        ];
        for (name, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            parameters.push((*name, "true".to_owned()));
        }
        let numbers = [
            ("sinceSeconds", self.since_seconds),
            ("tailLines", self.tail_lines),
            ("limitBytes", self.limit_bytes),
        ];
        for (name, number) in numbers {
            parameters.extend(number.map(|number| (name, number.to_string())));
        }
        parameters.extend(self.since_time.map(|time| ("sinceTime", time.to_string())));
        encode_query(parameters)
    }
}

const POSITIVE: &str = "must be greater than 0";

fn since_time(text: &str) -> Result<Time, ApiError> {
    Time::parse(text).map_err(|_| {
        ApiError::BadRequest(format!(
            "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
        ))
    })
}

/// The query of `/exec` and `/attach`: the kubelet has its own names for the streams. Mirrors
/// `streamParams`.
pub(super) fn stream_query(query: &Query, subresource: &str) -> String {
    let streams = [
        ("stdin", "input"),
        ("stdout", "output"),
        ("stderr", "error"),
        ("tty", "tty"),
    ];
    let mut parameters: Vec<(&str, String)> = streams
        .into_iter()
        .filter(|(name, _)| query.flag(name))
        .map(|(_, kubelet_name)| (kubelet_name, "1".to_owned()))
        .collect();
    if subresource == "exec" {
        let command = query.all("command");
        parameters.extend(command.iter().map(|word| ("command", (*word).to_owned())));
    }
    encode_query(parameters)
}

/// The query of `/portForward`.
///
/// # Errors
/// A port is no number from 0 to 65535.
pub(super) fn port_query(query: &Query) -> Result<String, ApiError> {
    let mut ports = Vec::new();
    for text in query.all("ports").iter().flat_map(|list| list.split(',')) {
        let port: u16 = text.parse().map_err(|_| {
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let why = if is_number {
                "value out of range"
            } else {
                "invalid syntax"
            };
            ApiError::BadRequest(format!(
                "cannot convert to []int32: strconv.ParseUint: parsing {text:?}: {why}"
            ))
        })?;
        ports.push(port.to_string());
    }
    if ports.is_empty() {
        return Ok(String::new());
    }
    Ok(encode_query(vec![("port", ports.join(","))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).expect("a query")
    }

    #[test]
    fn log_options_are_validated_and_passed_on() {
        for (given, expected) in [
            ("", Ok("")),
            ("container=a&follow=false&previous=0", Ok("")),
            (
                "follow=true&timestamps=1&previous=true&tailLines=0&limitBytes=9&sinceSeconds=3",
                Ok(
                    "follow=true&limitBytes=9&previous=true&sinceSeconds=3&tailLines=0&timestamps=true",
                ),
            ),
            (
                "sinceTime=2026-01-02T03:04:05Z&insecureSkipTLSVerifyBackend=true",
                Ok("sinceTime=2026-01-02T03%3A04%3A05Z"),
            ),
            (
                "tailLines=-1",
                Err(
                    "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
                ),
            ),
            (
                "limitBytes=0",
                Err(
                    "PodLogOptions \"p\" is invalid: limitBytes: Invalid value: 0: must be greater than 0",
                ),
            ),
            (
                "sinceSeconds=0",
                Err(
                    "PodLogOptions \"p\" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0",
                ),
            ),
            (
                "sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z",
                Err(
                    "PodLogOptions \"p\" is invalid: : Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
                ),
            ),
            (
                "stream=Stdout",
                Err("PodLogOptions \"p\" is invalid: stream: Forbidden: may not be specified"),
            ),
            (
                "tailLines=x",
                Err("strconv.ParseInt: parsing \"x\": invalid syntax"),
            ),
        ] {
            let read = LogOptions::read(&query(given), "p").map(|options| options.to_query());
            let message = |error: ApiError| error.to_status()["message"].clone();
            let expected = expected.map(str::to_owned);
            assert_eq!(
                read.map_err(message),
                expected.map_err(serde_json::Value::from),
                "{given}"
            );
        }
    }

    #[test]
    fn streams_have_the_names_of_the_kubelet() {
        let given = query("command=sh&command=-c&stdin=true&stdout=1&stderr=true&tty=false&x=1");
        let expected = "command=sh&command=-c&error=1&input=1&output=1";
        assert_eq!(stream_query(&given, "exec"), expected);
        assert_eq!(stream_query(&given, "attach"), "error=1&input=1&output=1");
    }

    #[test]
    fn ports_are_numbers() {
        for (given, expected) in [
            ("", Ok("")),
            ("ports=80", Ok("port=80")),
            ("ports=80,81&ports=82", Ok("port=80%2C81%2C82")),
            ("ports=http", Err("parsing \"http\": invalid syntax")),
            ("ports=70000", Err("parsing \"70000\": value out of range")),
        ] {
            let expected = expected.map(str::to_owned).map_err(|why| {
                ApiError::BadRequest(format!(
                    "cannot convert to []int32: strconv.ParseUint: {why}"
                ))
            });
            assert_eq!(port_query(&query(given)), expected, "{given}");
        }
    }
}
