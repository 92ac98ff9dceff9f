//! Limits the calls of inference that one client has in progress (`--client-limit`). Further ones wait before they are
//! read, so that they neither fail nor take what others need.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    num::NonZero,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::{rustls::pki_types::CertificateDer, server::TlsStream};

/// Most requests that a limit allows.
const MOST_REQUESTS: usize = 1 << 20;

/// How clients are told apart, and how many requests each may have in progress:
/// `address=<n>`, `certificate=<n>` or `header:<name>=<n>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimit {
    key: ClientKey,
    requests: NonZero<usize>,
}

/// What tells clients apart.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientKey {
    /// The IP address; of IPv6 the first 64 bits, which one client can choose freely below.
    Address,
    /// The subject of the client's certificate.
    Certificate,
    /// The value of a header.
    Header(HeaderName),
}

/// Why a limit cannot be read.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "expected 'address=<n>', 'certificate=<n>' or 'header:<name>=<n>' with n from 1 to {MOST_REQUESTS}, but found '{0}'"
)]
pub struct InvalidClientLimit(String);

impl FromStr for ClientLimit {
    type Err = InvalidClientLimit;

    fn from_str(text: &str) -> Result<Self, InvalidClientLimit> {
        let invalid = || InvalidClientLimit(text.to_owned());
        let (key, requests) = text.rsplit_once('=').ok_or_else(invalid)?;
        let key = match (key, key.strip_prefix("header:")) {
            ("address", _) => ClientKey::Address,
            ("certificate", _) => ClientKey::Certificate,
            (_, Some(name)) => ClientKey::Header(name.parse().map_err(|_| invalid())?),
            _ => return Err(invalid()),
        };
        let requests: NonZero<usize> = requests.parse().map_err(|_| invalid())?;
        if requests.get() > MOST_REQUESTS {
            return Err(invalid());
        }
        Ok(Self { key, requests })
    }
}

impl ClientLimit {
    /// Whether clients are told apart by certificates, which the ports must then require.
    pub fn needs_certificates(&self) -> bool {
        self.key == ClientKey::Certificate
    }
}

/// What the calls of a connection have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    /// `None` for a Unix socket.
    address: Option<IpAddr>,
    /// The digest of the subject of its certificate, if it presented one.
    subject: Option<Digested>,
}

/// A digest, so that what a client sends takes the same memory whatever its length.
type Digested = [u8; 32];

impl Identity {
    /// Of a connection from this address; `None` for a Unix socket.
    pub(super) fn of_address(address: Option<IpAddr>) -> Self {
        Self { address, subject: None }
    }

    /// Adds the subject of the certificate that the client presented. The handshake has verified it.
    pub(super) fn secured<S>(mut self, stream: &TlsStream<S>) -> Self {
        let (_, session) = stream.get_ref();
        self.subject = session.peer_certificates().and_then(|chain| subject_of(chain.first()?));
        self
    }
}

/// Returns the digest of the subject of a certificate.
fn subject_of(certificate: &CertificateDer<'_>) -> Option<Digested> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(Sha256::digest(certificate.subject()).into())
}

/// A client that has calls in progress.
#[derive(Debug)]
struct Present {
    places: Arc<Semaphore>,
    /// How many [`Client`]s there are of it.
    count: usize,
}

/// The clients that have calls in progress.
#[derive(Debug)]
pub struct Clients {
    limit: ClientLimit,
    /// By digest. A client leaves with its last call.
    present: Mutex<HashMap<Digested, Present>>,
    waits: AtomicU64,
}

impl Clients {
    /// Creates the clients of a server without calls.
    pub fn new(limit: ClientLimit) -> Arc<Self> {
        Arc::new(Self { limit, present: Mutex::default(), waits: AtomicU64::new(0) })
    }

    /// Returns how many calls had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns how many clients have calls in progress.
    pub fn present(&self) -> usize {
        self.present.lock().len()
    }

    /// Returns the client of a call.
    pub(super) fn client(self: &Arc<Self>, identity: &Identity, headers: &HeaderMap) -> Client {
        self.enter(self.key(identity, headers))
    }

    /// Returns what tells the client of a call apart.
    pub(super) fn key(&self, identity: &Identity, headers: &HeaderMap) -> [u8; 32] {
        let mut hash = Sha256::new();
        match &self.limit.key {
            ClientKey::Address => match identity.address.map(|address| address.to_canonical()) {
                Some(IpAddr::V4(address)) => hash.update(address.octets()),
                Some(IpAddr::V6(address)) => hash.update(&address.octets()[..8]),
                None => {}
            },
            ClientKey::Certificate => hash.update(identity.subject.unwrap_or_default()),
            // Those without the header are one client.
            ClientKey::Header(name) => {
                for value in headers.get_all(name) {
                    hash.update((value.len() as u64).to_le_bytes());
                    hash.update(value.as_bytes());
                }
            }
        }
        hash.finalize().into()
    }

    fn enter(self: &Arc<Self>, key: Digested) -> Client {
        let mut present = self.present.lock();
        let create = || Present { places: Arc::new(Semaphore::new(self.limit.requests.get())), count: 0 };
        let client = present.entry(key).or_insert_with(create);
        client.count += 1;
        Client { clients: Arc::clone(self), key, places: Arc::clone(&client.places) }
    }
}

/// A client with a call in progress.
pub(super) struct Client {
    clients: Arc<Clients>,
    key: Digested,
    places: Arc<Semaphore>,
}

impl Client {
    /// Returns a place for a request if one is free.
    pub(super) fn try_place(&self) -> Option<ClientPlace> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(ClientPlace { _permit: permit, _client: self.clone() })
    }

    /// Returns a place for a request once one is free, in the order of the calls.
    pub(super) async fn place(&self) -> Option<ClientPlace> {
        if let Some(place) = self.try_place() {
            return Some(place);
        }
        self.count_wait();
        self.place_for_stream().await
    }

    /// As [`Self::place`], for a stream, whose next request may not come soon: the wait is not counted.
    pub(super) async fn place_for_stream(&self) -> Option<ClientPlace> {
        // Places are never closed.
        let permit = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(ClientPlace { _permit: permit, _client: self.clone() })
    }

    /// Counts a request that had to wait.
    pub(super) fn count_wait(&self) {
        self.clients.waits.fetch_add(1, Ordering::Relaxed);
    }
}

impl Clone for Client {
    fn clone(&self) -> Self {
        self.clients.enter(self.key)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut present = self.clients.present.lock();
        if let Some(client) = present.get_mut(&self.key) {
            client.count -= 1;
            if client.count == 0 {
                present.remove(&self.key);
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("free", &self.places.available_permits()).finish_non_exhaustive()
    }
}

/// A place of a client for one request, until the request ends. Fields are dropped in order: the place is free before
/// the client may leave.
#[derive(Debug)]
pub(super) struct ClientPlace {
    _permit: OwnedSemaphorePermit,
    _client: Client,
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use futures_util::FutureExt;
    use http::HeaderValue;

    use super::*;

    fn limit(text: &str) -> ClientLimit {
        text.parse().expect("a well-formed limit")
    }

    fn by_header(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static("x-key"), HeaderValue::from_static(value))])
    }

    #[test]
    fn limits_are_read_and_others_refused() {
        assert_eq!(limit("address=4"), ClientLimit { key: ClientKey::Address, requests: NonZero::new(4).unwrap() });
        assert!(limit("certificate=1").needs_certificates());
        let header = ClientKey::Header(HeaderName::from_static("x-key"));
        assert_eq!(limit("header:X-Key=1048576").key, header);
        for wrong in ["", "address", "address=0", "address=1048577", "address=-1", "header:=3", "header:a b=3", "ip=2"]
        {
            let refused = wrong.parse::<ClientLimit>().expect_err(wrong).to_string();
            assert!(refused.ends_with(&format!("but found '{wrong}'")), "{refused}");
        }
    }

    #[test]
    fn a_client_waits_for_its_places_and_others_do_not() {
        let clients = Clients::new(limit("header:x-key=2"));
        let (peer, one, other) = (Identity::default(), by_header("one"), by_header("other"));
        let client = clients.client(&peer, &one);
        let (first, second) = (client.try_place().expect("free"), client.try_place().expect("free"));
        assert!(clients.client(&peer, &one).try_place().is_none());
        assert!(clients.client(&peer, &other).try_place().is_some());
        let mut waiting = Box::pin(client.place());
        assert!((&mut waiting).now_or_never().is_none());
        drop(first);
        assert!((&mut waiting).now_or_never().flatten().is_some(), "the place that became free");
        drop((waiting, second));
        assert_eq!(clients.waits(), 1);
    }

    #[test]
    fn clients_without_calls_are_forgotten() {
        let clients = Clients::new(limit("header:x-key=1"));
        let client = clients.client(&Identity::default(), &by_header("one"));
        let place = client.try_place().expect("free");
        let waiting = {
            let client = client.clone();
            async move { client.place().await }
        };
        let mut waiting = Box::pin(waiting);
        assert!((&mut waiting).now_or_never().is_none());
        drop((client, place));
        assert_eq!(clients.present(), 1, "one waits");
        drop(waiting);
        assert_eq!(clients.present(), 0);
        for number in 0..1000 {
            let value = HeaderValue::from(number);
            let headers = HeaderMap::from_iter([(HeaderName::from_static("x-key"), value)]);
            drop(clients.client(&Identity::default(), &headers).try_place());
        }
        assert_eq!(clients.present(), 0);
    }

    #[test]
    fn a_subject_is_a_client_whatever_the_certificate() {
        let certificate = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let key = rcgen::KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("a certificate").der().clone()
        };
        let subject = |name| subject_of(&certificate(name)).expect("a subject");
        assert_eq!(subject("one"), subject("one"));
        assert_ne!(subject("one"), subject("other"));
        assert_eq!(subject_of(&CertificateDer::from(vec![1, 2, 3])), None);
    }

    #[test]
    fn addresses_of_one_client_are_one() {
        let clients = Clients::new(limit("address=1"));
        let key = |address: IpAddr| {
            clients.client(&Identity { address: Some(address), subject: None }, &HeaderMap::new()).key
        };
        let v6 = |text: &str| IpAddr::V6(text.parse::<Ipv6Addr>().unwrap());
        assert_eq!(key(v6("2001:db8::1")), key(v6("2001:db8::2")));
        assert_ne!(key(v6("2001:db8::1")), key(v6("2001:db8:0:1::1")));
        assert_eq!(key(v6("::ffff:10.0.0.1")), key("10.0.0.1".parse().unwrap()));
        assert_ne!(key("10.0.0.1".parse().unwrap()), key("10.0.0.2".parse().unwrap()));
    }
}
