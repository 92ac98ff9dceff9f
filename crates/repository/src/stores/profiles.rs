//! Profiles in AWS's shared files: keys and a region by profile name.
//!
//! Only a profile's own keys are used. Roles, single sign-on and credential processes need AWS services and tools; a
//! profile that was asked for and has only these is rejected with the setting's name.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    StoreFault,
    credentials::{MAX_FILE_BYTES, Variables},
};
use crate::bounded_file::read_up_to;

/// The profile to use if none is named.
const DEFAULT: &str = "default";

/// Settings with which a profile gets its credentials from elsewhere.
const OTHER_SOURCES: [&str; 6] =
    ["role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file", "credential_source"];

/// The settings of a profile. An empty field is unset.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) key_id: String,
    pub(super) secret_key: String,
    pub(super) session_token: String,
    pub(super) region: String,
}

type Sections = BTreeMap<String, BTreeMap<String, String>>;

impl Profile {
    /// Returns the profile `named`, else that of `AWS_PROFILE`, else the default profile if it exists.
    ///
    /// # Errors
    /// Fails if a named profile does not exist or has no keys of its own, or if a file cannot be read.
    pub(super) fn find(named: Option<&str>, variables: Variables<'_>) -> Result<Option<Self>, StoreFault> {
        let variable = |name: &str| variables(name).filter(|value| !value.is_empty());
        let named = named.map(str::to_owned).or_else(|| variable("AWS_PROFILE"));
        let file = |name: &str, last: &str| {
            let of_home = || Some(PathBuf::from(variable("HOME")?).join(".aws").join(last));
            variable(name).map(PathBuf::from).or_else(of_home)
        };
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = file("AWS_CONFIG_FILE", "config");
        let name = named.as_deref().unwrap_or(DEFAULT);
        let of_config = if name == DEFAULT { DEFAULT.to_owned() } else { format!("profile {name}") };

        let (mut in_config, mut in_credentials) = (sections(config.as_deref())?, sections(credentials.as_deref())?);
        let found = (in_config.remove(&of_config), in_credentials.remove(name));
        if let (None, None) = found {
            let Some(name) = named else { return Ok(None) };
            let files: Vec<String> = [&credentials, &config].into_iter().flatten().map(|path| shown(path)).collect();
            return Err(StoreFault(format!("AWS's profile {name:?} is not in {}", files.join(" or "))));
        }
        // The credentials file takes precedence over the config file.
        let mut settings = found.0.unwrap_or_default();
        settings.extend(found.1.unwrap_or_default());
        let mut take = |key: &str| settings.remove(key).unwrap_or_default();
        let profile = Self {
            key_id: take("aws_access_key_id"),
            secret_key: take("aws_secret_access_key"),
            session_token: take("aws_session_token"),
            region: take("region"),
        };
        if named.is_some() && !profile.has_keys() {
            let other = OTHER_SOURCES.iter().find(|other| settings.contains_key(**other));
            let but = other.map(|other| format!(" but {other}, which is not supported")).unwrap_or_default();
            return Err(StoreFault(format!(
                "AWS's profile {name:?} has no aws_access_key_id and aws_secret_access_key{but}"
            )));
        }
        Ok(Some(profile))
    }

    /// Returns whether it has a key pair.
    pub(super) fn has_keys(&self) -> bool {
        !self.key_id.is_empty() && !self.secret_key.is_empty()
    }

    /// Returns whether a text repeats one of its secrets.
    pub(super) fn is_in(&self, text: &str) -> bool {
        [&self.secret_key, &self.session_token].into_iter().any(|secret| !secret.is_empty() && text.contains(secret))
    }
}

impl fmt::Debug for Profile {
    /// Leaves out the secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Profile").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Returns the sections of a file; none if the file does not exist.
fn sections(path: Option<&Path>) -> Result<Sections, StoreFault> {
    let Some(path) = path.filter(|path| path.exists()) else { return Ok(Sections::new()) };
    let bytes = read_up_to(path, MAX_FILE_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| StoreFault(format!("{} is not UTF-8", shown(path))))?;
    parse(&text).map_err(|line| {
        // The line itself is not quoted: it may hold a secret.
        let place = format!("line {line} of {}", shown(path));
        StoreFault(format!("{place} is neither '[section]' nor 'name = value'"))
    })
}

/// Parses the settings of each section. Indented lines are nested settings, which none of the settings read here has;
/// they are skipped. If a name occurs twice, the last one wins.
///
/// # Errors
/// Returns the number of the first invalid line, counted from 1.
fn parse(text: &str) -> Result<Sections, usize> {
    let mut sections = Sections::new();
    let mut current: Option<String> = None;
    for (number, line) in (1_usize..).zip(text.lines()) {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) || line.starts_with([' ', '\t']) {
            continue;
        }
        if let Some(rest) = content.strip_prefix('[') {
            let name = rest.split_once(']').ok_or(number)?.0;
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            current = Some(name);
            continue;
        }
        let (name, value) = content.split_once('=').ok_or(number)?;
        let section = current.as_ref().and_then(|name| sections.get_mut(name)).ok_or(number)?;
        // A comment after a value begins with a space.
        let end = [" #", " ;", "\t#", "\t;"].into_iter().filter_map(|mark| value.find(mark)).min();
        let value = &value[..end.unwrap_or(value.len())];
        section.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
    }
    Ok(sections)
}

fn shown(path: &Path) -> String {
    format!("'{}'", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const CREDENTIALS: &str = "\
# comment
[default]
aws_access_key_id = AKDEFAULT
aws_secret_access_key=hunter2

[other]
AWS_ACCESS_KEY_ID = AKOTHER   # whose
aws_secret_access_key = hunt=er#3
aws_session_token = token
";
    const CONFIG: &str = "\
[default]
region = eu-central-1
s3 =
    max_concurrent_requests = 20
[profile other]
region = us-west-2
aws_access_key_id = AKCONFIG
[profile role]
role_arn = arn:aws:iam::1:role/x
source_profile = other
[other]
region = nowhere
";

    struct Home(TempDir);

    impl Home {
        fn with(credentials: Option<&str>, config: Option<&str>) -> Self {
            let home = tempfile::tempdir().expect("a folder");
            fs::create_dir(home.path().join(".aws")).expect("a folder");
            for (name, text) in [("credentials", credentials), ("config", config)] {
                if let Some(text) = text {
                    fs::write(home.path().join(".aws").join(name), text).expect("a file");
                }
            }
            Self(home)
        }

        fn find(&self, named: Option<&str>, profile: Option<&str>) -> Result<Option<Profile>, String> {
            let variables = |name: &str| match name {
                "HOME" => Some(self.0.path().to_str().expect("text").to_owned()),
                "AWS_PROFILE" => profile.map(str::to_owned),
                _ => None,
            };
            Profile::find(named, &variables).map_err(|fault| fault.to_string())
        }
    }

    fn profile(key_id: &str, secret_key: &str, session_token: &str, region: &str) -> Profile {
        let [key_id, secret_key, session_token, region] =
            [key_id, secret_key, session_token, region].map(str::to_owned);
        Profile { key_id, secret_key, session_token, region }
    }

    #[test]
    fn a_profile_is_found_in_both_files_by_its_name() {
        let home = Home::with(Some(CREDENTIALS), Some(CONFIG));
        let default = Some(profile("AKDEFAULT", "hunter2", "", "eu-central-1"));
        assert_eq!(home.find(None, None), Ok(default.clone()));
        assert_eq!(home.find(None, Some("")), Ok(default.clone()), "an empty variable is none");
        let other = Some(profile("AKOTHER", "hunt=er#3", "token", "us-west-2"));
        assert_eq!(home.find(None, Some("other")), Ok(other.clone()));
        assert_eq!(home.find(Some("other"), Some("default")), Ok(other), "a credential file goes before the variable");
        assert_eq!(home.find(Some("default"), Some("other")), Ok(default));
    }

    #[test]
    fn without_files_there_is_no_profile_unless_one_is_named() {
        let home = Home::with(None, None);
        assert_eq!(home.find(None, None), Ok(None));
        let missing = home.find(None, Some("other")).expect_err("it is nowhere");
        assert!(
            missing.starts_with("AWS's profile \"other\" is not in '") && missing.contains(".aws/config'"),
            "{missing}"
        );
        let region = Home::with(None, Some("[default]\nregion = eu-west-1\n"));
        assert_eq!(region.find(None, None), Ok(Some(profile("", "", "", "eu-west-1"))));
    }

    #[test]
    fn a_profile_without_keys_is_refused_where_it_is_named() {
        let home = Home::with(Some(CREDENTIALS), Some(CONFIG));
        let refused = home.find(None, Some("role")).expect_err("it has no keys");
        let expected = "AWS's profile \"role\" has no aws_access_key_id and aws_secret_access_key but role_arn, which \
                        is not supported";
        assert_eq!(refused, expected);
    }

    #[test]
    fn a_line_that_is_wrong_is_named_and_not_repeated() {
        for (text, line) in [("[default]\nhunter2\n", 2), ("aws_secret_access_key = hunter2\n", 1), ("\n[hunter2\n", 2)]
        {
            let fault = Home::with(Some(text), None).find(None, None).expect_err("it is no such file");
            assert!(fault.starts_with(&format!("line {line} of '")) && !fault.contains("hunter2"), "{fault}");
        }
        let shown = format!("{:?}", profile("AK", "hunter2", "hunter2", "here"));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(profile("AK", "hunter2", "", "").is_in("cannot use 'hunter2'"));
        assert!(!profile("AK", "hunter2", "", "").is_in("cannot use it"));
    }
}
