//! The operators of this binary.
//!
//! Input: names on the command line. Output: operators without duplicates, or an error.

use bellerophon_operator::Operator;

use crate::error::CliError;

/// The operators that run as Deployments, in the order of the help text.
pub(crate) const ALL: [Operator; 6] = [
    bellerophon_icecream::OPERATOR,
    bellerophon_secsynch::OPERATOR,
    bellerophon_simple::OPERATOR,
    bellerophon_fruit::OPERATOR,
    bellerophon_reboot::OPERATOR,
    bellerophon_hero::OPERATOR,
];

/// The operators that run as DaemonSets. `all` does not include them.
const ON_NODES: [Operator; 1] = [bellerophon_reboot::AGENT];

/// The operators of this binary, those that run on nodes last.
pub(crate) fn all() -> impl Iterator<Item = Operator> {
    ALL.into_iter().chain(ON_NODES)
}

/// Parses a list such as `icecream,simple`, `all` or `none`.
///
/// # Errors
/// An unknown name.
pub(crate) fn parse_list(list: &str) -> Result<Vec<Operator>, CliError> {
    let mut operators: Vec<Operator> = Vec::new();
    for name in list.split(',').map(str::trim) {
        let named: Vec<Operator> = match name {
            "all" => ALL.to_vec(),
            "none" => Vec::new(),
            name => vec![
                *ALL.iter()
                    .chain(&ON_NODES)
                    .find(|operator| operator.name == name)
                    .ok_or_else(|| unknown(name))?,
            ],
        };
        for operator in named {
            // `all,icecream` names it twice; two controllers of one name are a setup error.
            if !operators.iter().any(|known| known.name == operator.name) {
                operators.push(operator);
            }
        }
    }
    Ok(operators)
}

fn unknown(name: &str) -> CliError {
    let names: Vec<&str> = ALL
        .iter()
        .chain(&ON_NODES)
        .map(|operator| operator.name)
        .collect();
    CliError::Usage(format!("unknown operator {name:?}"))
        .with_hint(&format!("choose from {}, or all", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use bellerophon_apiserver::ApiServer;
    use kube::client::Body;

    use super::*;

    /// Those of the Bellerophon operator had formats that only OpenAPI extensions know.
    #[tokio::test]
    async fn definitions_are_accepted_without_warnings() {
        let server = ApiServer::builder().start().await.expect("a server");
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        for operator in all() {
            for crd in (operator.crds)() {
                let name = crd.metadata.name.clone().unwrap_or_default();
                let body = serde_json::to_vec(&crd).expect("JSON");
                let request = http::Request::post(path)
                    .header("content-type", "application/json")
                    .body(Body::from(body))
                    .expect("a request");
                let response = server.client().send(request).await.expect("a response");
                assert_eq!(response.status(), 201, "{name}");
                let warnings: Vec<_> = response.headers().get_all("warning").iter().collect();
                assert!(warnings.is_empty(), "{name}: {warnings:?}");
            }
        }
        server.shutdown().await;
    }

    #[test]
    fn lists_are_parsed_without_duplicates() {
        let names = |list: &str| {
            parse_list(list).map(|operators| {
                operators
                    .iter()
                    .map(|operator| operator.name)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(names("simple, icecream"), Ok(vec!["simple", "icecream"]));
        assert_eq!(
            names("icecream,all"),
            Ok(vec![
                "icecream", "secsynch", "simple", "fruit", "reboot", "hero"
            ])
        );
        assert_eq!(names("none"), Ok(vec![]));
        let Err(CliError::Usage(message)) = names("icecream,vanilla") else {
            panic!("vanilla is unknown")
        };
        assert_eq!(
            message,
            "unknown operator \"vanilla\"; \
             choose from icecream, secsynch, simple, fruit, reboot, hero, reboot-agent, or all"
        );
    }
}
