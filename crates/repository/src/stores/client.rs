//! Creates the client of a location's store, with its credentials, timeouts and retries.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use object_store::{
    BackoffConfig, ClientOptions, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    gcp::GoogleCloudStorageBuilder,
};

use super::{
    Credentials, Location, StoreFault,
    credentials::{AzureCredential, GoogleFile, variable},
    listing::Store,
    location::Service,
    pages::ListingConnector,
    profiles::Profile,
};

/// Limits on connecting, and on waiting for the next byte.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of retries of a request, their total time, and the longest pause between two.
const RETRIES: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Creates the client of a location's store. It connects on first use.
///
/// # Errors
/// Fails if the credentials cannot be used; the reason does not contain them.
pub(super) fn open(location: &Location, credentials: &Credentials) -> Result<Arc<dyn Store>, StoreFault> {
    // The HTTP client uses the process-wide provider. Installing it fails if it is already installed, which is
    // harmless: it is the same one.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    match &location.service {
        Service::S3 { endpoint, bucket } => s3(location, endpoint.as_deref(), bucket, credentials),
        Service::Google { bucket } => google(location, bucket, credentials),
        Service::Azure { account, container } => azure(location, account, container, credentials),
    }
}

fn s3(
    location: &Location,
    endpoint: Option<&str>,
    bucket: &str,
    credentials: &Credentials,
) -> Result<Arc<dyn Store>, StoreFault> {
    // Credentials in order of precedence: keys of the credential file, its profile, keys of the environment, the
    // environment's profile.
    let mut profile = None;
    let mut builder = match credentials.s3(location.as_str())? {
        Some(given) if !given.key_id.is_empty() => {
            let builder = AmazonS3Builder::new().with_access_key_id(&given.key_id);
            let builder = builder.with_secret_access_key(&given.secret_key);
            set(builder, &given.session_token, AmazonS3Builder::with_token)
        }
        Some(given) if !given.profile.is_empty() => {
            profile = Profile::find(Some(&given.profile), &variable)?;
            AmazonS3Builder::from_env()
        }
        _ => {
            let builder = AmazonS3Builder::from_env();
            let has_value = |key| builder.get_config_value(&key).is_some_and(|value| !value.is_empty());
            // Keys in the environment take precedence over its profile, as in AWS's own clients.
            let is_open = !has_value(AmazonS3ConfigKey::AccessKeyId) && !skips_signature(&builder);
            if is_open {
                profile = Profile::find(None, &variable)?;
            }
            builder
        }
    };
    if let Some(profile) = &profile {
        if profile.has_keys() {
            builder = builder.with_access_key_id(&profile.key_id).with_secret_access_key(&profile.secret_key);
            builder = set(builder, &profile.session_token, AmazonS3Builder::with_token);
        }
        if builder.get_config_value(&AmazonS3ConfigKey::Region).is_none_or(|region| region.is_empty()) {
            builder = set(builder, &profile.region, AmazonS3Builder::with_region);
        }
    }
    if let Some(given) = credentials.s3(location.as_str())? {
        builder = set(builder, &given.region, AmazonS3Builder::with_region);
    }
    if let Some(endpoint) = endpoint {
        // The setting of AWS_ENDPOINT_URL_S3, which takes precedence over every other endpoint.
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let special = builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint);
    let endpoint = special.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    let builder =
        builder.with_bucket_name(bucket).with_retry(retries()).with_client_options(options(endpoint.as_deref()));
    let builder = builder.with_http_connector(ListingConnector);
    let repeats = |text: &str| credentials.are_in(text) || profile.as_ref().is_some_and(|profile| profile.is_in(text));
    Ok(Arc::new(builder.build().map_err(|error| unusable(&error, repeats))?))
}

/// Returns whether requests are unsigned, so that no credentials are needed.
fn skips_signature(builder: &AmazonS3Builder) -> bool {
    builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).is_some_and(|value| value == "true")
}

fn google(location: &Location, bucket: &str, credentials: &Credentials) -> Result<Arc<dyn Store>, StoreFault> {
    let given = credentials.google(location.as_str())?.cloned();
    let path = given.or_else(|| variable("GOOGLE_APPLICATION_CREDENTIALS")).filter(|path| !path.is_empty());
    let (builder, base_url) = match path {
        None => (GoogleCloudStorageBuilder::from_env(), None),
        Some(path) => {
            let file = GoogleFile::read(&path)?;
            let builder = GoogleCloudStorageBuilder::new();
            let builder = if file.is_service_account {
                builder.with_service_account_key(file.text)
            } else {
                builder.with_application_credentials(path)
            };
            (builder, file.base_url)
        }
    };
    let builder =
        builder.with_bucket_name(bucket).with_retry(retries()).with_client_options(options(base_url.as_deref()));
    let builder = builder.with_http_connector(ListingConnector);
    Ok(Arc::new(builder.build().map_err(|error| unusable(&error, |text| credentials.are_in(text)))?))
}

fn azure(
    location: &Location,
    account: &str,
    container: &str,
    credentials: &Credentials,
) -> Result<Arc<dyn Store>, StoreFault> {
    let of_variables = || AzureCredential {
        account: variable("AZURE_STORAGE_ACCOUNT").unwrap_or_default(),
        key: variable("AZURE_STORAGE_KEY").unwrap_or_default(),
        auth_type: variable("AZURE_STORAGE_AUTH_TYPE").unwrap_or_default(),
        client_id: variable("AZURE_STORAGE_CLIENT_ID").unwrap_or_default(),
    };
    let given = credentials.azure(location.as_str())?.cloned().unwrap_or_else(of_variables);
    let mut builder = MicrosoftAzureBuilder::from_env().with_account(account).with_container_name(container);
    match given.auth_type.as_str() {
        "" | "default" if given.key.is_empty() => {}
        "" | "default" => {
            if !given.account.is_empty() && given.account != account {
                return Err(StoreFault("the Azure credential is another account's than the location's".to_owned()));
            }
            if BASE64_STANDARD.decode(&given.key).is_err() {
                return Err(StoreFault("the key of the Azure account is not in base64".to_owned()));
            }
            builder = builder.with_access_key(&given.key);
        }
        "managed_identity" => {
            builder = builder.with_credential_type("managed_identity");
            builder = set(builder, &given.client_id, MicrosoftAzureBuilder::with_client_id);
        }
        _ => {
            let reason = "the authentication type of Azure is unknown: expected 'managed_identity' or 'default'";
            return Err(StoreFault(reason.to_owned()));
        }
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let builder = builder.with_retry(retries()).with_client_options(options(endpoint.as_deref()));
    let builder = builder.with_http_connector(ListingConnector);
    Ok(Arc::new(builder.build().map_err(|error| unusable(&error, |text| credentials.are_in(text)))?))
}

/// Applies `value` if it is not empty.
fn set<B>(builder: B, value: &str, with: impl FnOnce(B, String) -> B) -> B {
    if value.is_empty() { builder } else { with(builder, value.to_owned()) }
}

/// Returns why a client cannot be created. The error's own text is left out if it repeats a secret.
fn unusable(error: &object_store::Error, repeats_secret: impl Fn(&str) -> bool) -> StoreFault {
    let text = error.to_string();
    StoreFault(if repeats_secret(&text) {
        "the credentials, or the settings of the store in the environment, cannot be used".to_owned()
    } else {
        format!("the client of the store cannot be created: {}", text.escape_debug())
    })
}

fn retries() -> RetryConfig {
    let backoff = BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() };
    RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT }
}

/// Returns the client's options. There is no total timeout, so a large object may take any time while bytes arrive.
/// Plain HTTP is only allowed for an endpoint that asks for it, which then needs no root certificates.
fn options(endpoint: Option<&str>) -> ClientOptions {
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let options = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT_TIMEOUT);
    options.with_read_timeout(READ_TIMEOUT).with_allow_http(is_plain).with_no_system_certificates(is_plain)
}
