//! Denials of webhooks. Mirrors `ToStatusErr`.

use serde_json::{Map, Value};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_apimachinery::json_ext::JsonExt as _;

/// The denial of a request, with the status that the webhook gave. Mirrors `ToStatusErr`.
pub(super) fn denied(webhook: &str, mut status: Map<String, Value>) -> ApiError {
    let denied = format!("admission webhook {webhook:?} denied the request");
    let message = match (status.text("message"), status.text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = u16::try_from(status.number("code"))
        .unwrap_or_default()
        .max(400);
    let reason = status.text("reason").to_owned();
    let details = match status.remove("details") {
        Some(Value::Object(details)) => Some(details),
        _ => None,
    };
    ApiError::Status {
        code,
        reason,
        message,
        details,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn denials_name_the_webhook_and_have_an_error_code() {
        let status = |value: Value| denied("a.b.c", value.as_object().cloned().unwrap_or_default());
        let denial = status(json!({"message": "no", "code": 402, "reason": "Payment"}));
        assert_eq!(denial.code(), 402);
        let shown = denial.to_status();
        assert_eq!(
            shown["message"],
            "admission webhook \"a.b.c\" denied the request: no"
        );
        assert_eq!(shown["reason"], "Payment");
        let bare = status(json!({"code": 200}));
        assert_eq!(bare.code(), 400);
        assert_eq!(
            bare.to_status()["message"],
            "admission webhook \"a.b.c\" denied the request without explanation"
        );
    }
}
