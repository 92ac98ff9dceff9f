//! TLS and mutual TLS, with certificates that are generated in the test.

use std::{fs, path::PathBuf};

use paternoster_frontend::TlsConfig;
use paternoster_wire::pb::{ServerLiveRequest, grpc_inference_service_client::GrpcInferenceServiceClient};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::grpc::support::{Server, soon};

/// A certificate authority, and a certificate with key that it signed, in PEM.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("an authority") }
    }

    fn pem(&self) -> String {
        self.issuer.pem()
    }

    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }
}

/// The server's files.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder") }
    }

    fn write(&self, name: &str, pem: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, pem).expect("a file");
        path
    }

    fn config(&self, authority: &Authority, client_ca: Option<&Authority>) -> TlsConfig {
        let (cert, key) = authority.sign("localhost");
        TlsConfig {
            cert: self.write("server.pem", &cert),
            key: self.write("server.key", &key),
            client_ca: client_ca.map(|authority| self.write("clients.pem", &authority.pem())),
        }
    }
}

async fn connect(server: &Server, tls: ClientTlsConfig) -> Result<Channel, tonic::transport::Error> {
    let address = format!("https://localhost:{}", server.address().port());
    let endpoint = Endpoint::from_shared(address).expect("an address").tls_config(tls).expect("usable certificates");
    soon(endpoint.connect()).await
}

async fn is_live(channel: Channel) -> Result<bool, tonic::Status> {
    let response = soon(GrpcInferenceServiceClient::new(channel).server_live(ServerLiveRequest {})).await?;
    Ok(response.into_inner().live)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_trusts_the_authority_is_served() {
    let (files, authority) = (Files::new(), Authority::new());
    let server = Server::start(|config| config.tls = Some(files.config(&authority, None))).await;
    let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    let channel = connect(&server, trusting).await.expect("a connection");
    assert!(is_live(channel).await.expect("OK"));
    let other = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(Authority::new().pem()));
    connect(&server, other).await.expect_err("another authority");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_mutual_tls_only_clients_with_a_certificate_are_served() {
    let (files, authority, clients) = (Files::new(), Authority::new(), Authority::new());
    let server = Server::start(|config| config.tls = Some(files.config(&authority, Some(&clients)))).await;
    let trusting = || ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    let with = |(cert, key): (String, String)| trusting().identity(Identity::from_pem(cert, key));

    let channel = connect(&server, with(clients.sign("client"))).await.expect("a connection");
    assert!(is_live(channel).await.expect("OK"));
    for (refused, what) in [(trusting(), "no certificate"), (with(authority.sign("client")), "another authority's")] {
        // With TLS 1.3 the rejection may arrive after the client has completed its side of the handshake.
        if let Ok(channel) = connect(&server, refused).await {
            is_live(channel).await.expect_err(what);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_client_is_not_served_over_tls() {
    let (files, authority) = (Files::new(), Authority::new());
    let server = Server::start(|config| config.tls = Some(files.config(&authority, None))).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).expect("an address");
    if let Ok(channel) = soon(endpoint.connect()).await {
        is_live(channel).await.expect_err("no TLS");
    }
}
