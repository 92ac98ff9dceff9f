//! TLS and mutual TLS from PEM files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject},
        },
        server::{VerifierBuilderError, WebPkiClientVerifier},
    },
};

use crate::frontend::grpc::TlsConfig;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that is not there or holds no such PEM section.
    #[error("cannot read {what} from '{}': {error}", path.display())]
    File {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What is wrong.
        error: pem::Error,
    },
    /// A file without a certificate.
    #[error("'{}' holds no certificate", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not go together, or one of them is not usable.
    #[error("cannot use certificate and key: {0}")]
    Certificate(#[from] rustls::Error),
    /// The authorities for client certificates are not usable.
    #[error("cannot use the client authorities: {0}")]
    Authorities(#[from] VerifierBuilderError),
}

/// The server side of TLS, for HTTP/2 alone.
///
/// # Errors
/// When a file cannot be read or its content cannot be used.
pub(in crate::frontend::grpc) fn acceptor(config: &TlsConfig) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&config.cert, "a certificate")?;
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|error| TlsError::File {
        what: "a private key",
        path: config.key.clone(),
        error,
    })?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut authorities = RootCertStore::empty();
            for authority in certificates(path, "a client authority")? {
                authorities.add(authority)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut server = builder.with_single_cert(chain, key)?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error| TlsError::File { what, path: path.to_owned(), error };
    let chain = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if chain.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(chain) }
}
