//! TLS and mutual TLS from PEM files, for both ports. `reload` reads the files again when they change.

mod reload;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    self, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
};

pub use reload::Certificates;

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's certificate chain (`--grpc-server-cert`, `--http-server-cert`).
    pub cert: PathBuf,
    /// The certificate's private key (`--grpc-server-key`, `--http-server-key`).
    pub key: PathBuf,
    /// Authorities that must have signed a client's certificate; `None`: clients need no certificate
    /// (`--grpc-root-cert` with `--grpc-use-ssl-mutual`, and the same for HTTP).
    pub client_ca: Option<PathBuf>,
}

/// Why TLS cannot be set up. Each error names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file does not exist or has no such PEM section.
    #[error("cannot read {what} from '{}': {error}", path.display())]
    File {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        error: pem::Error,
    },
    /// A file has no certificate.
    #[error("'{}' holds no certificate", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The content of a file is unusable.
    #[error("cannot use {what} of '{}': {error}", path.display())]
    Unusable {
        /// The content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        error: rustls::Error,
    },
    /// The key belongs to another certificate.
    #[error("the private key in '{}' does not belong to the certificate in '{}'", key.display(), cert.display())]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The authorities for client certificates are not usable.
    #[error("cannot use the client authorities of '{}': {error}", path.display())]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// The error.
        error: VerifierBuilderError,
    },
    /// The TLS library cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Setup(rustls::Error),
}

/// How clients without a certificate are treated if there are client authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Uncertified {
    /// The handshake fails.
    Refused,
    /// The handshake succeeds; the request handlers check the certificate.
    Accepted,
}

/// Creates the server side of TLS for one protocol, by its ALPN name.
///
/// # Errors
/// If a file cannot be read, or if its content is unusable.
fn settings(config: &TlsConfig, alpn: &[u8], uncertified: Uncertified) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let identity = identity(config, &provider)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Setup)?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let authorities = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider);
            let verifier = match uncertified {
                Uncertified::Refused => verifier,
                Uncertified::Accepted => verifier.allow_unauthenticated(),
            };
            let unusable = |error| TlsError::Authorities { path: path.clone(), error };
            builder.with_client_cert_verifier(verifier.build().map_err(unusable)?)
        }
    };
    let mut server = builder.with_cert_resolver(Arc::new(identity));
    server.alpn_protocols = vec![alpn.to_vec()];
    Ok(server)
}

fn identity(config: &TlsConfig, provider: &CryptoProvider) -> Result<SingleCertAndKey, TlsError> {
    let TlsConfig { cert, key, .. } = config;
    let chain = certificates(cert, "a certificate")?;
    let private = PrivateKeyDer::from_pem_file(key);
    let private = private.map_err(|error| TlsError::File { what: "a private key", path: key.clone(), error })?;
    let private = provider.key_provider.load_private_key(private);
    let private = private.map_err(|error| TlsError::Unusable { what: "the private key", path: key.clone(), error })?;
    let certified = CertifiedKey::new(chain, private);
    match certified.keys_match() {
        // Some keys do not reveal which certificate they belong to.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(SingleCertAndKey::from(certified))
        }
        Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::Mismatch { cert: cert.clone(), key: key.clone() }),
        Err(error) => Err(TlsError::Unusable { what: "the certificate", path: cert.clone(), error }),
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut authorities = RootCertStore::empty();
    for authority in certificates(path, "a client authority")? {
        let unusable = |error| TlsError::Unusable { what: "a client authority", path: path.to_owned(), error };
        authorities.add(authority).map_err(unusable)?;
    }
    Ok(authorities)
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error| TlsError::File { what, path: path.to_owned(), error };
    let chain = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if chain.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(chain) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tempfile::TempDir;

    use super::*;

    fn refusal(files: [&str; 3]) -> (TempDir, String) {
        let folder = TempDir::new().expect("a folder");
        let [cert, key, client_ca] = ["cert.pem", "key.pem", "ca.pem"].map(|name| folder.path().join(name));
        for (path, content) in [&cert, &key, &client_ca].into_iter().zip(files) {
            fs::write(path, content).expect("a file");
        }
        let config = TlsConfig { cert, key, client_ca: Some(client_ca) };
        let refused = settings(&config, b"h2", Uncertified::Refused).err();
        (folder, refused.map(|error| error.to_string()).unwrap_or_default())
    }

    #[test]
    fn each_file_that_is_at_fault_is_named() {
        let pair = || generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let CertifiedKey { cert, signing_key } = pair();
        let (cert, key) = (cert.pem(), signing_key.serialize_pem());
        let other = pair().signing_key.serialize_pem();
        let garbled = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        let no_key = "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n";
        assert_eq!(refusal([&cert, &key, &cert]).1, "", "all is well");
        for (files, file, expected) in [
            (["", &key, &cert], "cert.pem", "holds no certificate"),
            ([&key, &key, &cert], "cert.pem", "holds no certificate"),
            ([garbled, &key, &cert], "cert.pem", "cannot use the certificate"),
            ([&cert, "", &cert], "key.pem", "cannot read a private key"),
            ([&cert, no_key, &cert], "key.pem", "cannot use the private key"),
            ([&cert, &other, &cert], "key.pem", "does not belong to the certificate in"),
            ([&cert, &key, ""], "ca.pem", "holds no certificate"),
            ([&cert, &key, garbled], "ca.pem", "cannot use a client authority"),
        ] {
            let (folder, refused) = refusal(files);
            let path = folder.path().join(file).display().to_string();
            assert!(refused.contains(expected) && refused.contains(&path), "{file}: {refused}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let nowhere = || PathBuf::from("/no/such/file.pem");
        let config = TlsConfig { cert: nowhere(), key: nowhere(), client_ca: None };
        let error = settings(&config, b"h2", Uncertified::Refused).expect_err("there is no file").to_string();
        assert!(error.starts_with("cannot read a certificate from '/no/such/file.pem': "), "{error}");
    }
}
