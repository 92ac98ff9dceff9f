//! Groups of methods that require an agreed header (`--grpc-restricted-protocol`, `--http-restricted-api`).

use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

/// Prefix of the name of every such header over gRPC.
const GRPC_PREFIX: &str = "triton-grpc-protocol-";

/// A group of methods, with Triton's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Protocol {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
}

impl Protocol {
    /// All groups with their names on the command line.
    const ALL: [(Self, &str); 9] = [
        (Self::Health, "health"),
        (Self::Metadata, "metadata"),
        (Self::Inference, "inference"),
        (Self::SharedMemory, "shared-memory"),
        (Self::ModelConfig, "model-config"),
        (Self::ModelRepository, "model-repository"),
        (Self::Statistics, "statistics"),
        (Self::Trace, "trace"),
        (Self::Logging, "logging"),
    ];
}

/// One use of a flag: `<group>[,<group>]:<key>=<value>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestrictedProtocol {
    /// The groups that require the header.
    pub protocols: Vec<Protocol>,
    /// The header's name.
    pub header: HeaderName,
    /// The header's value.
    pub value: HeaderValue,
}

/// Why a restriction is invalid.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RestrictionError {
    /// A `:` or `=` is missing. Contains only the text before the first of them, because the rest may be a secret.
    #[error("the restriction that begins with '{0}' is not of the form <group>[,<group>]:<key>=<value>")]
    Form(String),
    /// Unknown name of a group.
    #[error("restriction names the unknown group '{0}'")]
    UnknownGroup(String),
    /// The key or the value is not allowed in a header.
    #[error("restriction key '{key}' or its value cannot stand in a header")]
    Header {
        /// The key as given.
        key: String,
    },
    /// The value is empty, as where a variable of the shell is not set. An empty header would pass.
    #[error("restriction key '{key}' has an empty value, expected a secret")]
    NoSecret {
        /// The key as given.
        key: String,
    },
    /// Two restrictions name the same group.
    #[error("group '{0}' is restricted twice")]
    Twice(&'static str),
}

impl RestrictedProtocol {
    /// Parses a restriction of gRPC, where the header is Triton's prefix followed by the key.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn of_grpc(text: &str) -> Result<Self, RestrictionError> {
        Self::read(text, GRPC_PREFIX)
    }

    /// Parses a restriction of HTTP, where the key is the header's name.
    ///
    /// # Errors
    /// See [`Self::of_grpc`].
    pub fn of_http(text: &str) -> Result<Self, RestrictionError> {
        Self::read(text, "")
    }

    fn read(text: &str, prefix: &str) -> Result<Self, RestrictionError> {
        let form = || RestrictionError::Form(text.split([':', '=']).next().unwrap_or_default().to_owned());
        let (groups, pair) = text.split_once(':').ok_or_else(form)?;
        let (key, value) = pair.split_once('=').ok_or_else(form)?;
        if key.is_empty() {
            return Err(form());
        }
        // Blanks around a value are no part of it in HTTP.
        if value.trim().is_empty() {
            return Err(RestrictionError::NoSecret { key: key.to_owned() });
        }
        let protocols = groups
            .split(',')
            .map(|group| {
                let known = Protocol::ALL.iter().find(|(_, name)| *name == group);
                known.map(|(protocol, _)| *protocol).ok_or_else(|| RestrictionError::UnknownGroup(group.to_owned()))
            })
            .collect::<Result<_, _>>()?;
        let bad_header = || RestrictionError::Header { key: key.to_owned() };
        let header = HeaderName::try_from(format!("{prefix}{key}")).map_err(|_| bad_header())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| bad_header())?;
        // Sensitive values are omitted wherever headers are printed.
        value.set_sensitive(true);
        Ok(Self { protocols, header, value })
    }
}

/// The digest of a secret value. Comparing digests hides from the timing how much of a guess is right.
type Digested = [u8; 32];

fn digested(value: &HeaderValue) -> Digested {
    Sha256::digest(value.as_bytes()).into()
}

/// The required header of each group, if any.
#[derive(Clone, Debug, Default)]
pub(super) struct Restrictions {
    headers: [Option<(HeaderName, Digested)>; Protocol::ALL.len()],
}

impl Restrictions {
    /// Collects all uses of the flag.
    ///
    /// # Errors
    /// If two of them name the same group.
    pub(super) fn new(restricted: &[RestrictedProtocol]) -> Result<Self, RestrictionError> {
        let mut restrictions = Self::default();
        for restriction in restricted {
            for &protocol in &restriction.protocols {
                let slot = &mut restrictions.headers[protocol as usize];
                if slot.is_some() {
                    return Err(RestrictionError::Twice(Protocol::ALL[protocol as usize].1));
                }
                *slot = Some((restriction.header.clone(), digested(&restriction.value)));
            }
        }
        Ok(restrictions)
    }

    /// Whether the group requires a header.
    pub(super) fn restricts(&self, protocol: Protocol) -> bool {
        self.headers[protocol as usize].is_some()
    }

    /// Checks that a call carries its group's header, if one is required.
    ///
    /// # Errors
    /// Returns the name of the required header.
    pub(super) fn check(&self, protocol: Protocol, headers: &HeaderMap) -> Result<(), &HeaderName> {
        let Some((name, value)) = &self.headers[protocol as usize] else { return Ok(()) };
        let mut given = headers.get_all(name).iter().map(digested).peekable();
        // A header that comes twice with different values is ambiguous.
        if given.peek().is_some() && given.all(|given| given == *value) { Ok(()) } else { Err(name) }
    }

    /// Checks that a call may load models: that it carries the header of load requests or that of inference, which
    /// loads models too.
    ///
    /// # Errors
    /// Returns the name of the header that inference requires.
    pub(super) fn check_load(&self, headers: &HeaderMap) -> Result<(), &HeaderName> {
        self.check(Protocol::ModelRepository, headers).or_else(|_| self.check(Protocol::Inference, headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_are_in_the_order_of_their_discriminants() {
        for (position, (protocol, name)) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(protocol as usize, position, "group '{name}' stands at its own index");
        }
    }

    #[test]
    fn a_restriction_is_read_into_groups_header_and_value() {
        let flag = "model-repository,trace:admin=s=1";
        let restriction = RestrictedProtocol::of_grpc(flag).expect("a well-formed flag");
        assert_eq!(restriction.protocols, [Protocol::ModelRepository, Protocol::Trace]);
        assert_eq!(restriction.header, "triton-grpc-protocol-admin");
        assert_eq!(restriction.value, "s=1", "only the first '=' parts key and value");
        let of_http = RestrictedProtocol::of_http(flag).expect("a well-formed flag");
        assert_eq!((of_http.header.as_str(), of_http.protocols), ("admin", restriction.protocols));
    }

    #[test]
    fn a_malformed_restriction_is_refused_by_name() {
        let parse = RestrictedProtocol::of_grpc;
        assert_eq!(parse("health"), Err(RestrictionError::Form("health".into())));
        assert_eq!(parse("health:key"), Err(RestrictionError::Form("health".into())));
        assert_eq!(parse("health:=v"), Err(RestrictionError::Form("health".into())));
        assert_eq!(parse("helth:k=v"), Err(RestrictionError::UnknownGroup("helth".into())));
        assert_eq!(parse("health:k k=v"), Err(RestrictionError::Header { key: "k k".into() }));
    }

    #[test]
    fn a_restriction_without_a_secret_is_refused() {
        for value in ["", " ", " \t "] {
            let refusal = Err(RestrictionError::NoSecret { key: "admin".into() });
            let flag = format!("trace:admin={value}");
            assert_eq!(RestrictedProtocol::of_grpc(&flag), refusal, "{value:?} over gRPC");
            assert_eq!(RestrictedProtocol::of_http(&flag), refusal, "{value:?} over HTTP");
        }
    }

    #[test]
    fn a_secret_is_shown_neither_in_errors_nor_in_debug_texts() {
        for mistyped in
            ["health=key:secret", "health:secret", "helth:key=secret", "health:k k=secret", "health:k=secret\n"]
        {
            let error = RestrictedProtocol::of_http(mistyped).expect_err("it is mistyped");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
        let restriction = RestrictedProtocol::of_http("health:key=secret").expect("a well-formed flag");
        assert!(!format!("{restriction:?}").contains("secret"), "{restriction:?}");
    }

    #[test]
    fn a_group_restricted_twice_is_refused() {
        let first = RestrictedProtocol::of_grpc("health,trace:a=1").expect("a well-formed flag");
        let second = RestrictedProtocol::of_grpc("trace:b=1").expect("a well-formed flag");
        assert_eq!(Restrictions::new(&[first, second]).err(), Some(RestrictionError::Twice("trace")));
    }

    #[test]
    fn whoever_may_infer_or_load_may_have_models_loaded() {
        let restrictions = |flags: &[&str]| {
            let flags = flags.iter().map(|flag| RestrictedProtocol::of_http(flag).expect("a well-formed flag"));
            Restrictions::new(&flags.collect::<Vec<_>>()).expect("different groups")
        };
        let none = HeaderMap::new();
        for flags in [&[][..], &["inference:user=u"], &["model-repository:admin=a", "metadata:x=x"]] {
            assert!(restrictions(flags).check_load(&none).is_ok(), "{flags:?}: the other group is open");
        }
        let both = restrictions(&["inference:user=u", "model-repository:admin=a"]);
        assert_eq!(both.check_load(&none).expect_err("neither header"), "user");
        for (header, value, passes) in [("user", "u", true), ("admin", "a", true), ("user", "a", false)] {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(header), HeaderValue::from_static(value))]);
            assert_eq!(both.check_load(&headers).is_ok(), passes, "{header}: {value}");
        }
    }

    #[test]
    fn only_calls_with_the_right_value_pass() {
        let restriction = RestrictedProtocol::of_grpc("inference:key=secret").expect("a well-formed flag");
        let restrictions = Restrictions::new(&[restriction]).expect("one restriction");
        let mut headers = HeaderMap::new();
        assert!(restrictions.check(Protocol::Health, &headers).is_ok(), "other groups stay open");
        assert!(restrictions.check(Protocol::Inference, &headers).is_err(), "no header");
        headers.insert("triton-grpc-protocol-key", HeaderValue::from_static("guess"));
        assert!(restrictions.check(Protocol::Inference, &headers).is_err(), "a wrong value");
        headers.insert("triton-grpc-protocol-key", HeaderValue::from_static("secret"));
        assert!(restrictions.check(Protocol::Inference, &headers).is_ok(), "the right value");
        headers.append("triton-grpc-protocol-key", HeaderValue::from_static("guess"));
        assert!(restrictions.check(Protocol::Inference, &headers).is_err(), "a wrong value beside it");
    }
}
