//! POST of a review: TokenReview, access reviews, TokenRequest.
//! Guarantees: the response is the request with its status; nothing is stored.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::body::Expected;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::Review;

use super::{
    Call, Content, Reply,
    create::{read_object, settle_namespace},
    subresources::read_as,
};
use crate::{
    admission::Operation,
    api::Api,
    auth::{self, AccessReview, Authenticator, TokenRequest},
    http::query::WriteOptions,
    managed_fields, write,
};

/// Answers a review.
///
/// # Errors
/// A body that cannot be read, or an invalid review.
pub(super) async fn answer(
    api: &Api,
    authenticator: &Authenticator,
    call: &Call,
    kind: Review,
) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "CreateOptions", false)?;
    let mut review = read_object(call, &options)?;
    settle_namespace(call, &mut review)?;
    call.tracker(api, &options).update(None, &mut review);
    admit(api, call, &options, &mut review).await?;
    let user = &call.user;
    let now = api.clock.now();
    let answered = match kind {
        Review::Token => auth::review_token(review, authenticator, api, now)?,
        Review::Own => auth::review_self(user, review, now),
        Review::Access => auth::review_access(AccessReview::Subject, review, api)?,
        Review::LocalAccess => auth::review_access(
            AccessReview::Local {
                namespace: &call.target.namespace,
            },
            review,
            api,
        )?,
        Review::OwnAccess => auth::review_access(AccessReview::Own(user), review, api)?,
        Review::OwnRules => auth::review_own_rules(user, review, api)?,
    };
    Ok(Reply::created(Content::Object(Box::new(answered))))
}

async fn admit(
    api: &Api,
    call: &Call,
    options: &WriteOptions,
    object: &mut Object,
) -> Result<(), ApiError> {
    let attributes = call.attributes();
    let operation = Operation::Create;
    write::admit(api, &attributes, operation, options.dry_run, object, None).await
}

/// Handles a TokenRequest for the service account of the path.
///
/// # Errors
/// A body that cannot be decoded, or a token that cannot be issued.
pub(super) async fn issue_token(
    api: &Api,
    authenticator: &Authenticator,
    call: &Call,
) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "CreateOptions", false)?;
    let expected = Expected::of("authentication.k8s.io", "v1", "TokenRequest")
        .expect("the table of types has token requests");
    let mut body = read_as(call, &expected, &options)?;
    auth::default_token_request(&mut body);
    let manager = managed_fields::manager_name(&options.field_manager, &call.user_agent);
    let now = api.clock.now();
    managed_fields::claim(expected.ty(), &mut body, "token", manager, now);
    admit(api, call, &options, &mut body).await?;
    let request = TokenRequest {
        namespace: &call.target.namespace,
        account: &call.target.name,
        body,
        now,
    };
    let answered = auth::issue_token(request, authenticator, api, &api.entropy)?;
    Ok(Reply::created(Content::Object(Box::new(answered))))
}
