//! Flags of TLS, which both ports have under names of their own.

use std::path::PathBuf;

use paternoster_frontend::TlsConfig;

use super::{Conflict, GrpcArgs, HttpArgs};

/// The TLS flags of one port.
#[derive(Clone, Copy, Debug)]
struct TlsFlags<'a> {
    /// Prefix of the flags' names.
    port: &'static str,
    use_ssl: bool,
    mutual: bool,
    cert: Option<&'a PathBuf>,
    key: Option<&'a PathBuf>,
    root: Option<&'a PathBuf>,
}

impl TlsFlags<'_> {
    /// Returns the files, if TLS is on.
    ///
    /// # Errors
    /// Fails if a file is missing. The message names its flag and the flag that needs it.
    fn config(self) -> Result<Option<TlsConfig>, Conflict> {
        let Self { port, use_ssl, mutual, cert, key, root } = self;
        if !use_ssl && !mutual {
            return Ok(None);
        }
        let flag = if mutual { "use-ssl-mutual" } else { "use-ssl" };
        let given = |name: &str, file: Option<&PathBuf>| {
            file.cloned().ok_or_else(|| Conflict(format!("--{port}-{flag} needs --{port}-{name}")))
        };
        let (cert, key) = (given("server-cert", cert)?, given("server-key", key)?);
        let client_ca = if mutual { Some(given("root-cert", root)?) } else { None };
        Ok(Some(TlsConfig { cert, key, client_ca }))
    }
}

impl GrpcArgs {
    /// Returns the files for TLS, if it is on.
    ///
    /// # Errors
    /// Fails if one of them is missing.
    pub fn tls(&self) -> Result<Option<TlsConfig>, Conflict> {
        let (cert, key, root) = (self.server_cert.as_ref(), self.server_key.as_ref(), self.root_cert.as_ref());
        TlsFlags { port: "grpc", use_ssl: self.use_ssl, mutual: self.use_ssl_mutual, cert, key, root }.config()
    }
}

impl HttpArgs {
    /// As [`GrpcArgs::tls`].
    ///
    /// # Errors
    /// As [`GrpcArgs::tls`].
    pub fn tls(&self) -> Result<Option<TlsConfig>, Conflict> {
        let (cert, key, root) = (self.server_cert.as_ref(), self.server_key.as_ref(), self.root_cert.as_ref());
        TlsFlags { port: "http", use_ssl: self.use_ssl, mutual: self.use_ssl_mutual, cert, key, root }.config()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::tests::serve, *};

    #[test]
    fn a_client_certificate_is_asked_for_only_by_the_mutual_flag() {
        for port in ["grpc", "http"] {
            let tls = |given: &[&str]| {
                let given: Vec<String> = given.iter().map(|flag| format!("--{port}-{flag}")).collect();
                let args = serve(&given.iter().map(String::as_str).collect::<Vec<_>>());
                if port == "grpc" { args.grpc.tls() } else { args.http.tls() }
            };
            let files = ["server-cert=c", "server-key=k", "root-cert=r"];
            let with = |flag: &str| tls(&[&files[..], &[flag]].concat()).expect("all files are given");
            assert_eq!(tls(&files), Ok(None), "files alone do not switch TLS on");
            assert_eq!(with("use-ssl").map(|tls| tls.client_ca), Some(None));
            assert_eq!(with("use-ssl-mutual").map(|tls| tls.client_ca), Some(Some(PathBuf::from("r"))));
        }
    }
}
