//! The body of a scrape: OpenMetrics if requested, otherwise the Prometheus text format.

use http::{HeaderValue, Response, StatusCode, header};
use prometheus_client::encoding::text::{encode_eof, encode_registry};

use super::{Metrics, process::process, state::state};
use crate::{
    api::Api,
    http::{body::Body, negotiate, response::text_response},
};

const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
const OPEN_METRICS: &str =
    "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores";

/// All metrics, in the format that suits `accept`.
pub(crate) fn scrape(api: &Api, metrics: &Metrics, accept: &str) -> Response<Body> {
    let mut text = String::new();
    let admission = &api.admission_config.metrics.registry;
    for registry in [&metrics.registry, admission, &state(api), &process()] {
        encode_registry(&mut text, registry).expect("writing to memory does not fail");
    }
    encode_eof(&mut text).expect("writing to memory does not fail");
    let open = negotiate::ranges(accept)
        .first()
        .is_some_and(|best| best.type_ == "application/openmetrics-text");
    // kube-apiserver has counters without the suffix `_total`.
    let text = text.replace("_count_total{", "_count{");
    let (text, media_type) = if open {
        (text, OPEN_METRICS)
    } else {
        (classic(&text).replace("_count_total ", "_count "), CLASSIC)
    };
    let mut response = text_response(StatusCode::OK, text);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// The older format: the head of a counter has the name that its samples have, and there is no end
/// mark.
fn classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        let typed = |line: &str| {
            line.strip_prefix("# TYPE ")
                .and_then(|rest| rest.split_once(' '))
                .map(|(_, kind)| kind.to_owned())
        };
        let kind = typed(line).or_else(|| lines.peek().and_then(|next| typed(next)));
        match (line.split_once(' '), kind.as_deref()) {
            (Some(("#", "EOF")), _) => continue,
            (Some(("#", head)), Some("counter")) => {
                out.push_str(&renamed(head, "_total", "counter"))
            }
            (Some(("#", head)), Some("info")) => out.push_str(&renamed(head, "_info", "gauge")),
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// A `HELP` or `TYPE` line for the name with its suffix.
fn renamed(head: &str, suffix: &str, kind: &str) -> String {
    let mut words = head.splitn(3, ' ');
    let word = words.next().unwrap_or_default();
    let name = words.next().unwrap_or_default();
    let rest = words.next().unwrap_or_default();
    let rest = if word == "TYPE" { kind } else { rest };
    format!("# {word} {name}{suffix} {rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_format_names_heads_as_their_samples() {
        let open = "# HELP a Some a.\n# TYPE a counter\na_total{x=\"1\"} 2\n# HELP b Some b.\n# TYPE b gauge\nb 1\n\
                    # HELP c Some c.\n# TYPE c info\nc_info{v=\"1\"} 1\n# EOF\n";
        let classic_text = "# HELP a_total Some a.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n# HELP b Some b.\n# TYPE b gauge\nb 1\n\
                            # HELP c_info Some c.\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n";
        assert_eq!(classic(open), classic_text);
    }
}
