//! A validation rule as in the definition.
//! In: an entry of `x-kubernetes-validations`. Out: its fields, and its form in error messages.

use serde_json::{Value, json};

/// One entry of `x-kubernetes-validations`. Absent strings are empty, as in Kubernetes' own types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) rule: String,
    pub(crate) message: String,
    pub(crate) message_expression: String,
    pub(crate) reason: Option<String>,
    pub(crate) field_path: String,
    pub(crate) optional_old_self: Option<bool>,
}

impl Rule {
    /// Decodes a rule.
    ///
    /// # Errors
    /// A field of another JSON type.
    pub(crate) fn parse(value: &Value) -> Result<Self, String> {
        let fields = value
            .as_object()
            .ok_or("a validation rule must be an object")?;
        let get = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let optional = |name: &str| {
            get(name)
                .map(|value| {
                    value
                        .as_str()
                        .map(str::to_owned)
                        .ok_or_else(|| format!("{name} of a rule must be a string"))
                })
                .transpose()
        };
        let text = |name: &str| Ok::<_, String>(optional(name)?.unwrap_or_default());
        Ok(Self {
            rule: text("rule")?,
            message: text("message")?,
            message_expression: text("messageExpression")?,
            reason: optional("reason")?,
            field_path: text("fieldPath")?,
            optional_old_self: get("optionalOldSelf")
                .map(|value| {
                    value
                        .as_bool()
                        .ok_or("optionalOldSelf of a rule must be a boolean")
                })
                .transpose()?,
        })
    }

    pub(crate) fn takes_optional_old_self(&self) -> bool {
        self.optional_old_self == Some(true)
    }

    /// The message of the rule, or the rule itself.
    pub(crate) fn title(&self) -> &str {
        let text = if self.message.is_empty() {
            &self.rule
        } else {
            &self.message
        };
        text.trim()
    }

    /// The message for an object that breaks the rule.
    pub(crate) fn complaint(&self) -> String {
        if self.message.is_empty() {
            format!("failed rule: {}", self.title())
        } else {
            self.title().to_owned()
        }
    }

    /// The rule as Go prints it inside an error.
    pub(crate) fn in_go(&self) -> String {
        let text = |text: &str| {
            json!(text)
                .to_string()
                .replace('<', "\\u003c")
                .replace('>', "\\u003e")
                .replace('&', "\\u0026")
        };
        format!(
            "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
            text(&self.rule),
            text(&self.message),
            text(&self.message_expression),
            self.reason
                .as_deref()
                .map_or_else(|| "null".to_owned(), text),
            text(&self.field_path),
            json!(self.optional_old_self),
        )
    }
}
