//! The host that a request names.
//!
//! A page of any site can make its own name lead to an address of the browser's machine (DNS rebinding). Its requests
//! then reach a server on a loopback address, and the browser lets the page read the answers. They carry the site's
//! name as host, so such a server answers only to names that no other site can have.

use std::{net::IpAddr, sync::Arc};

use http::{HeaderMap, Request, StatusCode, Version, header::HOST, uri::Authority};

use super::Problem;
use crate::Endpoint;

/// The hosts that requests to a port may name.
#[derive(Clone, Debug, Default)]
pub(super) enum Names {
    /// Any, because the server does not know under which names other machines reach it.
    #[default]
    Any,
    /// Those of this machine, and the name that the flag for the address gives, if any.
    ThisMachine(Option<Arc<str>>),
}

impl Names {
    /// Returns the hosts that clients of an endpoint may name, given the address that it was bound to.
    pub(super) fn of(endpoint: &Endpoint, bound: &Endpoint) -> Self {
        let is_loopback = bound.socket().is_some_and(|address| address.ip().to_canonical().is_loopback());
        match endpoint {
            // A browser does not reach a Unix socket.
            _ if !is_loopback => Self::Any,
            Endpoint::Name { host, .. } => Self::ThisMachine(Some(host.to_ascii_lowercase().into())),
            _ => Self::ThisMachine(None),
        }
    }

    /// Checks that a request names one host, and that it is one of these.
    ///
    /// # Errors
    /// 400 if there is no host, more than one, or one that cannot be read (RFC 9112, section 3.2); 403 for the name of
    /// another site.
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let named = only(request.headers(), request.version())?;
        // An authority in the request's target takes precedence over the header (RFC 9112, section 3.2.2).
        let Some(host) = request.uri().authority().or(named.as_ref()) else { return Ok(()) };
        let host = host.host();
        match self {
            Self::ThisMachine(name) if !is_this_machine(host, name.as_deref()) => {
                let message = format!(
                    "the host '{host}' is not this machine: a server on a loopback address expects localhost or an IP \
                     address"
                );
                Err(Problem::new(StatusCode::FORBIDDEN, message))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the host of the header; `None` if it is empty, or if an older client sends none.
fn only(headers: &HeaderMap, version: Version) -> Result<Option<Authority>, Problem> {
    let mut lines = headers.get_all(HOST).iter();
    let Some(line) = lines.next() else {
        return match version {
            Version::HTTP_11 => Err(Problem::invalid("the request has no Host header, expected one")),
            _ => Ok(None),
        };
    };
    if lines.next().is_some() {
        return Err(Problem::invalid("the request has more than one Host header, expected one"));
    }
    if line.is_empty() {
        return Ok(None);
    }
    let host = Authority::try_from(line.as_bytes()).ok().filter(is_host);
    let unreadable = || Problem::invalid(format!("Host is {line:?}, expected a host with or without a port"));
    host.map(Some).ok_or_else(unreadable)
}

/// Whether an authority is a host with at most a port, as the header requires.
fn is_host(authority: &Authority) -> bool {
    let behind = authority.as_str().strip_prefix(authority.host());
    behind.is_some_and(|behind| matches!(behind, "" | ":") || authority.port_u16().is_some())
}

/// Whether a host is an address, a name that browsers resolve to the loopback address themselves (RFC 6761), or
/// `known`.
fn is_this_machine(host: &str, known: Option<&str>) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if address.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || known == Some(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;

    fn names(endpoint: &Endpoint, bound: &str) -> Names {
        Names::of(endpoint, &Endpoint::Ip(bound.parse().expect("an address")))
    }

    fn local() -> Names {
        names(&Host::LOOPBACK.at(0), "127.0.0.1:80")
    }

    fn asked(target: &str, hosts: &[&str], version: Version, names: &Names) -> Result<(), Problem> {
        let mut request = Request::builder().uri(target).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        names.check(&request.body(()).expect("a request"))
    }

    fn status(asked: Result<(), Problem>) -> u16 {
        use axum::response::IntoResponse;
        asked.err().map_or(200, |problem| problem.into_response().status().as_u16())
    }

    #[test]
    fn on_a_loopback_address_only_names_of_this_machine_are_answered() {
        for (host, expected) in [
            ("localhost", 200),
            ("LocalHost.:8000", 200),
            ("model.localhost:8000", 200),
            ("127.0.0.1:8000", 200),
            ("10.1.2.3", 200),
            ("[::1]:8000", 200),
            ("", 200),
            ("site.example", 403),
            ("site.example:8000", 403),
            ("localhost.site.example", 403),
            ("notlocalhost", 403),
            ("127.0.0.1.site.example", 403),
            ("[site]", 403),
        ] {
            assert_eq!(status(asked("/v2/overview", &[host], Version::HTTP_11, &local())), expected, "{host}");
        }
        let ask = |host: &str, names: &Names| asked("/v2", &[host], Version::HTTP_11, names);
        for bound in ["10.0.0.1:80", "0.0.0.0:80", "[::]:80"] {
            let names = names(&Host::ANY.at(80), bound);
            assert_eq!(ask("site.example", &names), Ok(()), "any name may be that of {bound}");
        }
        for bound in ["127.0.0.2:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(status(ask("site.example", &names(&Host::ANY.at(80), bound))), 403, "{bound}");
        }
        let named = names(&Endpoint::Name { host: "Server".to_owned(), port: 80 }, "127.0.1.1:80");
        assert_eq!((ask("server:80", &named), status(ask("other", &named))), (Ok(()), 403), "the flag's name is known");
    }

    #[test]
    fn a_host_in_the_target_takes_precedence() {
        let asked = |target, host| status(asked(target, &[host], Version::HTTP_11, &local()));
        assert_eq!(asked("http://site.example/v2", "localhost"), 403);
        assert_eq!(asked("http://localhost/v2", "site.example"), 200);
    }

    #[test]
    fn a_request_names_one_host() {
        for names in [Names::Any, local()] {
            let status = |hosts: &[&str], version| status(asked("/v2", hosts, version, &names));
            assert_eq!(status(&[], Version::HTTP_11), 400, "none");
            assert_eq!(status(&[], Version::HTTP_10), 200, "none was required in HTTP/1.0");
            assert_eq!(status(&["localhost", "localhost"], Version::HTTP_11), 400, "two");
            assert_eq!(status(&["localhost", "localhost"], Version::HTTP_10), 400, "two");
            for host in ["a b", "user@localhost", "localhost:port", "a/b"] {
                assert_eq!(status(&[host], Version::HTTP_11), 400, "{host}");
            }
        }
    }
}
