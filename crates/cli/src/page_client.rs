//! A client of the page of `bellerophon run --page`.
//!
//! Input: the URL that the command printed. Output: the configuration of a client that sends the
//! token of the URL.

use std::str::FromStr;

use http::{HeaderValue, Uri, header};
use kube::Config;

/// The URL of a page, with its token.
#[derive(Clone)]
pub(crate) struct PageUrl {
    address: Uri,
    /// `Bearer` and the token.
    authorization: HeaderValue,
}

impl PageUrl {
    /// A client configuration. The page is on loopback, without TLS.
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new(self.address.clone());
        let authorization = (header::AUTHORIZATION, self.authorization.clone());
        config.headers.push(authorization);
        config
    }
}

impl FromStr for PageUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let failed = "not a URL of a page, such as 'http://127.0.0.1:8080/#token=1f…'; quote it";
        let (address, token) = text.split_once("/#token=").ok_or(failed)?;
        let address: Uri = address.parse().map_err(|_| failed)?;
        if address.scheme_str() != Some("http") || token.is_empty() {
            return Err(failed);
        }
        let mut authorization =
            HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| failed)?;
        authorization.set_sensitive(true);
        Ok(Self {
            address,
            authorization,
        })
    }
}

impl std::fmt::Debug for PageUrl {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_needs_an_address_and_a_token() {
        let url: PageUrl = "http://127.0.0.1:8080/#token=secret"
            .parse()
            .expect("a URL");
        assert_eq!(url.config().cluster_url, "http://127.0.0.1:8080/");
        assert_eq!(format!("{url:?}"), "http://127.0.0.1:8080/");
        for text in [
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8080/#token=",
            "127.0.0.1:8080/#token=secret",
            "https://127.0.0.1:8080/#token=secret",
            "http://127.0.0.1:8080/#token=\n",
        ] {
            assert!(text.parse::<PageUrl>().is_err(), "{text}");
        }
    }
}
