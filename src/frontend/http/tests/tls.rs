//! HTTP over TLS, with certificates made on the spot.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

use super::*;
use crate::frontend::Protocol;

/// An authority, which signs certificates for others.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// A certificate and its key, in PEM.
    fn sign(&self, name: &str) -> (String, String) {
        self.sign_until(name, 4000)
    }

    /// As [`Self::sign`], with the year in which it expires.
    fn sign_until(&self, name: &str, year: i32) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_after = date_time_ymd(year, 1, 1);
        (params.signed_by(&key, &self.0).expect("signed").pem(), key.serialize_pem())
    }
}

/// A server over TLS, and what its clients need.
struct Secured {
    started: Started,
    authority: Authority,
    _folder: TempDir,
}

/// Starts a server; with authorities for clients it refuses those without a certificate.
async fn secured(clients: Option<&Authority>, budgets: Budgets) -> Secured {
    let (authority, folder) = (Authority::new(), TempDir::new().expect("a folder"));
    let write = |name: &str, pem: &str| -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, pem).expect("a file");
        path
    };
    let (cert, key) = authority.sign("localhost");
    let tls = TlsConfig {
        cert: write("server.pem", &cert),
        key: write("server.key", &key),
        client_ca: clients.map(|clients| write("clients.pem", &clients.0.pem())),
    };
    let config = HttpConfig { tls: Some(tls), ..HttpConfig::default() };
    Secured { started: start_with(budgets, config, Timeline::off()).await, authority, _folder: folder }
}

/// How a client shakes hands.
#[derive(Default)]
struct Client {
    certificate: Option<(String, String)>,
    alpn: Vec<Vec<u8>>,
}

impl Secured {
    async fn connect(&self, client: Client) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.0.pem().as_bytes()).expect("PEM")).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_root_certificates(roots);
        let mut config = match client.certificate {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let cert = CertificateDer::from_pem_slice(cert.as_bytes()).expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(vec![cert], key).expect("a pair")
            }
        };
        config.alpn_protocols = client.alpn;
        let stream = TcpStream::connect(self.started.address()).await.expect("the server listens");
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// The answer to a request on a connection of its own, as text.
    async fn ask(&self, client: Client, method: &str, path: &str) -> io::Result<String> {
        let mut stream = self.connect(client).await?;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8(answer).expect("text"))
    }
}

#[tokio::test]
async fn requests_are_answered_over_tls_and_not_in_plain_text() {
    let server = secured(None, Budgets::default()).await;
    let alpn = vec![b"http/1.1".to_vec()];
    let mut stream = server.connect(Client { alpn, ..Client::default() }).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    stream.write_all(b"GET /v2 HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    let without_alpn = server.ask(Client::default(), "GET", "/v2/models/ident").await.expect("an answer");
    assert!(without_alpn.starts_with("HTTP/1.1 200 "), "{without_alpn}");
    let alpn = vec![b"h2".to_vec()];
    server.connect(Client { alpn, ..Client::default() }).await.expect_err("HTTP/2 is not spoken here");

    let mut plain = TcpStream::connect(server.started.address()).await.expect("the server listens");
    plain.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: test\r\n\r\n").await.expect("it reads");
    let mut answer = Vec::new();
    // It may be reset, since the server has not read all of it.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn without_a_certificate_nothing_answers_but_health() {
    let clients = Authority::new();
    let server = secured(Some(&clients), Budgets::default()).await;
    let certified = || Client { certificate: Some(clients.sign("client")), ..Client::default() };
    for (path, group, _) in routes::table().into_iter().chain(routes::web()) {
        let path = path.replace("{model}", "ident").replace("{version}", "1");
        for method in ["GET", "POST"] {
            let answer = server.ask(certified(), method, &path).await.expect("an answer");
            assert!(!answer.starts_with("HTTP/1.1 403 "), "{method} {path}: {answer}");
            if answer.starts_with("HTTP/1.1 405 ") {
                continue;
            }
            let answer = server.ask(Client::default(), method, &path).await.expect("an answer");
            let is_refused = answer.starts_with("HTTP/1.1 403 ");
            assert_eq!(is_refused, group != Protocol::Health, "{method} {path}: {answer}");
        }
    }
    let stranger = Client { certificate: Some(Authority::new().sign("client")), ..Client::default() };
    // With TLS 1.3 the refusal may come after the client's own side of the handshake.
    server.ask(stranger, "GET", "/v2/health/live").await.expect_err("a certificate of another authority");
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused() {
    let clients = Authority::new();
    let server = secured(Some(&clients), Budgets::default()).await;
    let client =
        |until_year| Client { certificate: Some(clients.sign_until("client", until_year)), ..Client::default() };
    server.ask(client(4000), "GET", "/v2/health/live").await.expect("an answer");
    server.ask(client(2000), "GET", "/v2/health/live").await.expect_err("it has expired");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_gives_its_place_back() {
    let places = Budget::of(1);
    let server = secured(None, Budgets { http_connections: Arc::clone(&places), ..Budgets::default() }).await;
    let began = tokio::time::Instant::now();
    let mut silent = TcpStream::connect(server.started.address()).await.expect("the server listens");
    assert_eq!(silent.read(&mut [0; 1]).await.expect("it is closed"), 0);
    assert!(began.elapsed() >= listener::HANDSHAKE_TIMEOUT, "{:?}", began.elapsed());
    while places.used() > 0 {
        tokio::task::yield_now().await;
    }
    let answer = server.ask(Client::default(), "GET", "/v2/health/live").await.expect("its place is free");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_connection_too_many_is_closed_without_a_word() {
    let places = Budget::of(1);
    let server = secured(None, Budgets { http_connections: Arc::clone(&places), ..Budgets::default() }).await;
    let first = server.connect(Client::default()).await.expect("a handshake");
    assert_eq!(exchange(server.started.address(), b"").await, "", "it could not be read before a handshake");
    drop(first);
}

#[tokio::test]
async fn a_port_whose_certificate_cannot_be_used_stays_closed() {
    let fixture = Fixture::start(Budgets::default()).await;
    let nowhere = PathBuf::from("/no/such/server.pem");
    let tls = TlsConfig { cert: nowhere.clone(), key: nowhere, client_ca: None };
    let config = HttpConfig { tls: Some(tls), ..HttpConfig::default() };
    let timeline = Arc::new(Timeline::off());
    let error = HttpServer::start(ANY_PORT, fixture.services.clone(), config, timeline).await.expect_err("no file");
    assert!(error.to_string().contains("'/no/such/server.pem'"), "{error}");
}
