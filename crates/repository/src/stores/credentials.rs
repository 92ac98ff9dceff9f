//! Credentials from the environment: Triton's variables and its credential file.
//!
//! No secret is ever shown, by `Debug` or in an error. Errors name only variables, files and positions in them.

use std::{collections::BTreeMap, env, fmt, path::Path};

use serde::Deserialize;

use super::StoreFault;
use crate::bounded_file::read_up_to;

/// Environment variable that names the credential file.
const FILE: &str = "TRITON_CLOUD_CREDENTIAL_PATH";

/// Size limit of a credential file.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Substrings of the names of variables that hold secrets.
const SECRET_NAMES: [&str; 4] = ["KEY", "SECRET", "TOKEN", "SAS"];

/// Looks up an environment variable; tests replace it.
pub(super) type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The credential file, if one is named. It takes precedence over the variables.
#[derive(Default)]
pub(crate) struct Credentials {
    file: Option<CredentialFile>,
}

/// Credentials by service and by the beginning of a location.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialFile {
    #[serde(default)]
    s3: BTreeMap<String, S3Credential>,
    #[serde(default)]
    gs: BTreeMap<String, String>,
    #[serde(default, rename = "as")]
    azure: BTreeMap<String, AzureCredential>,
}

/// A credential for S3. An empty field is unset.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct S3Credential {
    pub(super) key_id: String,
    pub(super) secret_key: String,
    pub(super) session_token: String,
    pub(super) region: String,
    pub(super) profile: String,
}

/// A credential for Azure. An empty field is unset.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AzureCredential {
    #[serde(rename = "account_str")]
    pub(super) account: String,
    #[serde(rename = "account_key")]
    pub(super) key: String,
    pub(super) auth_type: String,
    pub(super) client_id: String,
}

impl Credentials {
    /// Reads the credential file that the environment names, if any.
    ///
    /// # Errors
    /// Fails if it cannot be read. The message names the file and the position of the fault.
    pub(crate) fn of_environment() -> Result<Self, StoreFault> {
        Self::read(&variable)
    }

    pub(super) fn read(variables: Variables<'_>) -> Result<Self, StoreFault> {
        let Some(path) = variables(FILE).filter(|path| !path.is_empty()) else { return Ok(Self::default()) };
        let bytes =
            read_up_to(Path::new(&path), MAX_FILE_BYTES).map_err(|fault| StoreFault(format!("{FILE}: {fault}")))?;
        let file = serde_json::from_slice(&bytes).map_err(|fault| {
            // serde's message may repeat the value that it found.
            let (line, column) = (fault.line(), fault.column());
            StoreFault(format!(
                "{FILE}: '{path}' is not a valid credential file at line {line}, column {column}: expected objects \
                 's3' (key_id, secret_key, session_token, region, profile), 'gs' (texts) and 'as' (account_str, \
                 account_key, auth_type, client_id), each by the beginning of a location"
            ))
        })?;
        Ok(Self { file: Some(file) })
    }

    /// Returns the credential for a location in S3; `None` without a credential file.
    ///
    /// # Errors
    /// Fails if there is a file, but no entry for the location.
    pub(super) fn s3(&self, location: &str) -> Result<Option<&S3Credential>, StoreFault> {
        self.longest(location, |file| &file.s3)
    }

    /// Returns the path of the credential for a location in Google Cloud Storage; `None` without a credential file.
    ///
    /// # Errors
    /// Fails if there is a file, but no entry for the location.
    pub(super) fn google(&self, location: &str) -> Result<Option<&String>, StoreFault> {
        self.longest(location, |file| &file.gs)
    }

    /// Returns the credential for a location in Azure; `None` without a credential file.
    ///
    /// # Errors
    /// Fails if there is a file, but no entry for the location.
    pub(super) fn azure(&self, location: &str) -> Result<Option<&AzureCredential>, StoreFault> {
        self.longest(location, |file| &file.azure)
    }

    /// Returns whether a text repeats a secret of the file or the environment.
    pub(super) fn are_in(&self, text: &str) -> bool {
        let is_secret = |name: &str| SECRET_NAMES.iter().any(|part| name.contains(part));
        let variables =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let of_environment = variables.filter(|(name, _)| is_secret(name)).map(|(_, value)| value);
        let of_file = self.file.iter().flat_map(|file| {
            let s3 = file.s3.values().flat_map(|given| [&given.secret_key, &given.session_token]);
            s3.chain(file.azure.values().map(|given| &given.key)).cloned()
        });
        of_environment.chain(of_file).any(|secret| !secret.is_empty() && text.contains(&secret))
    }

    fn longest<'c, C>(
        &'c self,
        location: &str,
        of_service: impl FnOnce(&'c CredentialFile) -> &'c BTreeMap<String, C>,
    ) -> Result<Option<&'c C>, StoreFault> {
        let Some(file) = &self.file else { return Ok(None) };
        let matching = of_service(file).iter().filter(|(start, _)| location.starts_with(start.as_str()));
        match matching.max_by_key(|(start, _)| start.len()) {
            Some((_, credential)) => Ok(Some(credential)),
            None => Err(StoreFault(format!("the file of {FILE} has no credential for this location"))),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Returns an environment variable of this process.
pub(super) fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// A Google credential: the text of its file, and what decides how to use it.
pub(super) struct GoogleFile {
    pub(super) text: String,
    pub(super) is_service_account: bool,
    /// URL of the store, if it is not Google's.
    pub(super) base_url: Option<String>,
}

impl GoogleFile {
    /// Reads a file that `GOOGLE_APPLICATION_CREDENTIALS` or a credential file names.
    ///
    /// # Errors
    /// Fails if it cannot be read or is not a Google credential. The message names the file.
    pub(super) fn read(path: &str) -> Result<Self, StoreFault> {
        #[derive(Deserialize)]
        struct Fields {
            #[serde(default, rename = "type")]
            kind: String,
            private_key: Option<String>,
            gcs_base_url: Option<String>,
        }
        let bytes = read_up_to(Path::new(path), MAX_FILE_BYTES)?;
        let unknown = || StoreFault(format!("'{path}' is not a Google credential: expected JSON with a 'type'"));
        let fields: Fields = serde_json::from_slice(&bytes).map_err(|_| unknown())?;
        let is_service_account =
            fields.kind == "service_account" || fields.kind.is_empty() && fields.private_key.is_some();
        if !is_service_account && fields.kind != "authorized_user" {
            return Err(StoreFault(format!(
                "'{path}' is not a known type of Google credential: expected the type 'service_account' or \
                 'authorized_user'"
            )));
        }
        let text = String::from_utf8(bytes).map_err(|_| unknown())?;
        Ok(Self { text, is_service_account, base_url: fields.gcs_base_url })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn credentials(text: &str) -> Result<Credentials, StoreFault> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        Credentials::read(&|name| (name == FILE).then(|| path.clone()))
    }

    #[test]
    fn the_longest_beginning_wins() {
        let file = credentials(
            r#"{
                "s3": {
                    "": {"key_id": "any", "secret_key": "s", "region": "", "session_token": "", "profile": ""},
                    "s3://one": {"key_id": "one", "secret_key": "s"},
                    "s3://one/deep": {"key_id": "deep", "secret_key": "s"},
                    "s3://https://host:443/b": {"key_id": "host", "secret_key": "s"}
                },
                "gs": {"gs://b": "/path/b.json"},
                "as": {"": {"account_str": "a", "account_key": "k"}}
            }"#,
        )
        .unwrap();
        let key = |location: &str| file.s3(location).unwrap().unwrap().key_id.clone();
        assert_eq!(key("s3://other/x"), "any");
        assert_eq!(key("s3://one/x"), "one");
        assert_eq!(key("s3://one/deep/x"), "deep");
        assert_eq!(key("s3://https://host:443/b/models"), "host");
        assert_eq!(file.google("gs://b/m").unwrap().unwrap(), "/path/b.json");
        assert_eq!(file.azure("as://a/c").unwrap().unwrap().key, "k");
        let none = file.google("gs://other").unwrap_err().to_string();
        assert!(none.contains(FILE), "{none}");
    }

    #[test]
    fn without_a_file_the_variables_count() {
        let none = Credentials::read(&|_| None).unwrap();
        assert!(none.s3("s3://b").unwrap().is_none() && none.google("gs://b").unwrap().is_none());
    }

    #[test]
    fn a_file_that_is_wrong_is_named_and_its_secrets_are_not() {
        let secret = "hunter2";
        for text in [
            r#"{"s3": "hunter2"}"#,
            r#"{"s3": {"": "hunter2"}}"#,
            r#"{"s3": {"": {"secret_key": ["hunter2"]}}}"#,
            r#"{"s3": {"": {"hunter2": "x"}}}"#,
            r#"{"as": {"": {"account_key": {"hunter2": 1}}}}"#,
            "hunter2",
        ] {
            let fault = credentials(text).unwrap_err().to_string();
            assert!(fault.contains(FILE) && fault.contains("line 1, column"), "{fault}");
            assert!(!fault.contains(secret), "{fault}");
        }
        let missing = Credentials::read(&|_| Some("/nowhere/file.json".to_owned())).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/file.json") && missing.contains(FILE), "{missing}");
        let shown = format!("{:?}", credentials(r#"{"s3": {"": {"secret_key": "hunter2"}}}"#).unwrap());
        assert!(!shown.contains(secret), "{shown}");
    }

    #[test]
    fn a_text_that_repeats_a_secret_is_known() {
        let file = credentials(
            r#"{"s3": {"": {"key_id": "k", "secret_key": "hunter2"}}, "as": {"": {"account_key": "azure"}}}"#,
        );
        let file = file.unwrap();
        assert!(file.are_in("cannot parse 'hunter2'") && file.are_in("azure!") && !file.are_in("cannot parse it"));
    }

    #[test]
    fn google_credentials_are_known_by_their_type() {
        let read = |text: &str| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            GoogleFile::read(file.path().to_str().unwrap())
        };
        assert!(read(r#"{"type": "service_account", "private_key": "p"}"#).unwrap().is_service_account);
        let local = read(r#"{"private_key": "p", "gcs_base_url": "http://localhost:1"}"#).unwrap();
        assert_eq!((local.is_service_account, local.base_url.as_deref()), (true, Some("http://localhost:1")));
        assert!(!read(r#"{"type": "authorized_user"}"#).unwrap().is_service_account);
        for text in ["{}", r#"{"type": "external_account", "private_key": "hunter2"}"#, r#"{"type": ["hunter2"]}"#] {
            let fault = read(text).err().unwrap().to_string();
            assert!(fault.contains("Google credential: expected") && !fault.contains("hunter2"), "{fault}");
        }
    }
}
