//! `matchConditions` of webhooks and policies.

use serde_json::Value;

use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_resources::kinds::admission::Compiler;
use bellerophon_resources::kinds::admission::Declared;
use bellerophon_resources::kinds::admission::Expression;
use bellerophon_resources::kinds::admission::Returns;

/// Conditions that a request must meet, in their order.
#[derive(Debug, Default)]
pub(crate) struct MatchConditions(pub(crate) Vec<Expression>);

impl MatchConditions {
    pub(super) fn of(conditions: &[Value], has_params: bool, compiler: &Compiler) -> Self {
        let declared = Declared {
            params: has_params,
            authorizer: true,
            ..Declared::default()
        };
        let expressions = conditions.iter().map(|condition| {
            let text = condition.text("expression");
            compiler.compile(text, declared, Returns::Bool)
        });
        Self(expressions.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
