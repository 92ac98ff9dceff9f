//! `GET /`: a web page that shows `GET /v2/overview`. A single file of HTML, style and script.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::{
    HeaderValue,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};
use sha2::{Digest, Sha256};

/// The whole page. It loads nothing from elsewhere.
const PAGE: &str = include_str!("page.html");

/// Content security policy: allows only this style, this script, and requests to this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (style, script) = (digest_of("style"), digest_of("script"));
    format!(
        "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// Returns the digest of the content of the page's only element with this tag, as a policy states it.
fn digest_of(tag: &str) -> String {
    let inside = PAGE.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
    let (inside, _) = inside.unwrap_or_default();
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(inside)))
}

/// Answers `GET /`.
pub(super) async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    let mut response = (headers, PAGE).into_response();
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_style_and_one_script_and_loads_nothing() {
        for tag in ["<style>", "</style>", "<script>", "</script>"] {
            assert_eq!(PAGE.matches(tag).count(), 1, "{tag}");
        }
        for foreign in ["src=", "http://", "https://", "@import", "url(", "innerHTML", "style=\"", "onclick"] {
            let found = PAGE.replace("'http://www.w3.org/2000/svg'", "").contains(foreign);
            assert!(!found, "{foreign} needs more than the policy allows");
        }
    }

    #[test]
    fn the_policy_names_the_style_and_the_script_by_their_digests() {
        assert_eq!(POLICY.matches("'sha256-").count(), 2);
        assert!(!POLICY.contains(&BASE64_STANDARD.encode(Sha256::digest(""))), "something was digested: {}", *POLICY);
        assert!(!POLICY.contains("unsafe"));
    }
}
