//! Authentication and authorization.
//! In: a request's certificate and headers, the stored service accounts, roles and bindings. Out: a
//! [`User`] and a [`Decision`].
//! Guarantees: nothing here writes storage or reads a clock; the decision depends only on the
//! stored objects and the given time.

mod authenticate; // from a certificate, a token or neither to a user
mod authorize; // whether a user may use a verb on a target
mod bindings; // role bindings by subject
mod claims; // claims of tokens
mod coverage; // whether rules cover the rules of a role
mod decoded; // roles and bindings, decoded once per version
mod escalation; // privilege escalation prevention
mod impersonate; // impersonation
mod lookup; // what is read from storage
mod rbac; // roles bound to a user, rules that allow a request
mod review; // TokenReview and the access reviews
mod token_keys; // keys that sign and verify tokens
mod token_request; // issuing a service-account token through the API
mod tokens; // signed service-account tokens
mod user; // a user
mod websocket_token; // tokens of browsers

#[cfg(test)]
mod fake_lookup; // stored objects for tests

pub(crate) use authenticate::{Authenticator, PeerCertificate};
pub(crate) use authorize::{Attributes, Decision, Target, authorize, check};
pub(crate) use bindings::BindingIndex;
pub(crate) use decoded::Decoded;
pub(crate) use escalation::confirm_no_escalation;
pub(crate) use impersonate::{impersonate, wanted_user};
pub(crate) use lookup::{Lookup, Source};
pub(crate) use review::{AccessReview, review_access, review_own_rules, review_self, review_token};
pub(crate) use token_keys::{KeyError, PublicKey, SigningKey};
pub(crate) use token_request::{TokenRequest, default_token_request, issue_token};
pub(crate) use tokens::Tokens;
pub(crate) use user::{ANONYMOUS, MASTERS, User, service_account_name};
pub(crate) use websocket_token::move_websocket_token;
