//! Errors of any kind, and errors with their causes on one line.

use std::error::Error as StdError;

/// Any error.
///
/// ```
/// use bellerophon::controller::BoxError;
/// use bellerophon::prelude::*;
///
/// fn connect(url: &str) -> Result<(), BoxError> {
///     Err(format!("no response from {url}").into())
/// }
///
/// fn reconcile() -> Result<Action, Error> {
///     connect("https://example.org").map_err(Error::retry)?;
///     Ok(Action::await_change())
/// }
/// let error = reconcile().expect_err("nothing responds");
/// assert_eq!(error.to_string(), "no response from https://example.org");
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error and its causes on one line. A status of the server is its message: the error of the
/// client repeats it with all fields. A cause that its error names already is left out.
pub(crate) fn one_line(error: &(dyn StdError + 'static)) -> String {
    let mut line = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        // WriteError has its source in a box, and a downcast sees the box.
        let boxed = error.downcast_ref::<Box<kube::Error>>();
        let client_error = error.downcast_ref().or(boxed.map(|error| &**error));
        let message = client_error.and_then(|error: &kube::Error| match error {
            kube::Error::Api(status) => Some(&status.message),
            _ => None,
        });
        let message = message.filter(|message| !message.is_empty());
        let text = message.cloned().unwrap_or_else(|| error.to_string());
        if !line.contains(&text) {
            let separator = if line.is_empty() { "" } else { ": " };
            line.push_str(separator);
            line.push_str(&text);
        }
        if message.is_some() {
            break;
        }
    }
    // A server may answer with several lines.
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_their_errors() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = kube::Error::Service(Box::new(refused));
        let expected = "ServiceError: connection refused";
        assert_eq!(one_line(&error), expected);
    }
}
