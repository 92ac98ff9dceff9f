//! The OpenAPI description of the routes.

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;

/// Path of the description.
pub(super) const PATH: &str = "/v2/openapi.json";

/// The description, OpenAPI 3.0. Tests compare it with the routes, and the server's responses with it.
const DESCRIPTION: &str = include_str!("openapi.json");

/// Answers `GET /v2/openapi.json`.
pub(super) async fn description() -> Response {
    ([(CONTENT_TYPE, "application/json")], DESCRIPTION).into_response()
}

// It describes the routes of all features.
#[cfg(all(test, feature = "text"))]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        sync::Arc,
    };

    use axum::body::Body;
    use http::{Request, StatusCode};
    use paternoster_observe::{budget::Budgets, timeline::Timeline};
    use serde_json::Value;
    use tower::ServiceExt;

    use super::{
        super::{HttpConfig, fixture::Fixture, routes},
        *,
    };

    fn described() -> Value {
        serde_json::from_str(DESCRIPTION).expect("JSON")
    }

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let paths: BTreeSet<String> = routes::table().into_iter().chain(routes::web()).map(|(path, ..)| path).collect();
        let described: BTreeMap<String, Value> =
            serde_json::from_value(described()["paths"].clone()).expect("paths are an object");
        assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), paths);
    }

    #[tokio::test]
    async fn every_method_that_is_described_is_served_and_no_other_is() {
        let fixture = Fixture::start(Budgets::default()).await;
        let services = Arc::new(fixture.services.clone());
        let router =
            routes::api(services, HttpConfig::default(), Arc::new(Timeline::off())).expect("sound descriptors");
        for (path, operations) in described()["paths"].as_object().expect("an object") {
            for method in ["GET", "POST", "PUT", "DELETE"] {
                let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a path");
                let answer = router.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
                let is_served = answer.status() != StatusCode::METHOD_NOT_ALLOWED;
                let is_described = operations.get(method.to_lowercase()).is_some();
                assert_eq!(is_served, is_described, "{method} {path}");
            }
        }
    }

    #[test]
    fn every_parameter_of_a_path_and_every_reference_is_defined() {
        let document = described();
        for (path, operations) in document["paths"].as_object().expect("an object") {
            let in_path = path.matches('{').count();
            let declared = operations["parameters"].as_array().map_or(0, Vec::len);
            assert_eq!(in_path, declared, "{path}");
        }
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().expect("a string ends");
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
