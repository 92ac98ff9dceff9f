//! Where a port listens: addresses, names of hosts, and Unix sockets.

use std::{
    fmt, fs,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream as BlockingUnixStream,
    },
    path::{Path, PathBuf},
    str::FromStr,
};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// Prefix of a Unix socket in a flag, as gRPC's clients write it.
const UNIX: &str = "unix:";

/// A connection that was accepted.
pub(super) type Stream = Either<TcpStream, UnixStream>;

/// A connection, after the handshake if it has TLS. One type, so that HTTP is compiled once.
pub(super) type Opened = Either<Stream, TlsStream<Stream>>;

/// The part of an endpoint that a flag for an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address of the machine, or all of them.
    Ip(IpAddr),
    /// A name that is resolved when the port opens.
    Name(String),
    /// A file, which makes a port meaningless.
    Unix(PathBuf),
}

impl Host {
    /// All addresses of IPv4.
    pub const ANY: Self = Self::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    /// The address that only this machine reaches.
    pub const LOOPBACK: Self = Self::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));

    /// Returns the endpoint with this port.
    pub fn at(&self, port: u16) -> Endpoint {
        match self {
            Self::Ip(ip) => Endpoint::Ip(SocketAddr::new(*ip, port)),
            Self::Name(host) => Endpoint::Name { host: host.clone(), port },
            Self::Unix(path) => Endpoint::Unix(path.clone()),
        }
    }
}

/// Not the form of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an IP address such as 0.0.0.0, 127.0.0.1 or [::1], the name of a host, or unix:/path/of/a/socket")]
pub struct InvalidHost;

impl FromStr for Host {
    type Err = InvalidHost;

    fn from_str(given: &str) -> Result<Self, InvalidHost> {
        if let Some(path) = given.strip_prefix(UNIX) {
            return if path.is_empty() { Err(InvalidHost) } else { Ok(Self::Unix(PathBuf::from(path))) };
        }
        // It may resolve to the loopback address of IPv6 alone, which clients of IPv4 do not reach.
        if given == "localhost" {
            return Ok(Self::LOOPBACK);
        }
        let bare = given.strip_prefix('[').and_then(|given| given.strip_suffix(']')).unwrap_or(given);
        match bare.parse() {
            Ok(ip) => Ok(Self::Ip(ip)),
            Err(_) if is_name(given) => Ok(Self::Name(given.to_owned())),
            Err(_) => Err(InvalidHost),
        }
    }
}

/// Whether a text has the form of a host's name (RFC 1123, section 2.1), and is no address with a mistake.
fn is_name(given: &str) -> bool {
    let is_part = |part: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !part.is_empty() && part.len() <= 63 && part.bytes().all(is_known) && !part.starts_with('-')
    };
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = given.strip_suffix('.').unwrap_or(given);
    given.len() <= 253 && parts.split('.').all(is_part) && !parts.rsplit('.').next().is_some_and(is_number)
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(formatter),
            Self::Name(host) => formatter.write_str(host),
            Self::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port; 0 before it is bound lets the system choose.
    Ip(SocketAddr),
    /// A name that has not been resolved.
    Name {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Returns the address and port of an endpoint that is reached by TCP.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Name { .. } | Self::Unix(_) => None,
        }
    }

    /// Opens the endpoint. Also returns it with its address and port.
    ///
    /// # Errors
    /// If the name cannot be resolved or the endpoint cannot be bound.
    pub(super) async fn bind(&self) -> io::Result<(Listener, Self)> {
        let listener = match self {
            Self::Ip(address) => TcpListener::bind(address).await?,
            Self::Name { host, port } => TcpListener::bind((host.as_str(), *port)).await?,
            Self::Unix(path) => return Ok((Listener(Either::Right(SocketFile::bind(path)?)), self.clone())),
        };
        let bound = Self::Ip(listener.local_addr()?);
        Ok((Listener(Either::Left(listener)), bound))
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(formatter),
            Self::Name { host, port } => write!(formatter, "{host}:{port}"),
            Self::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

/// An open endpoint.
#[derive(Debug)]
pub(super) struct Listener(Either<TcpListener, SocketFile>);

impl Listener {
    /// Accepts a connection.
    ///
    /// # Errors
    /// If the system has no room for one, or the peer has disconnected.
    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            Either::Left(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without this, a small response could wait for the acknowledgement of the previous one. It fails only
                // if the peer has disconnected, which the first read finds too.
                let _ = stream.set_nodelay(true);
                Ok(Either::Left(stream))
            }
            Either::Right(file) => Ok(Either::Right(file.listener.accept().await?.0)),
        }
    }
}

/// A Unix socket, whose file is removed with it.
#[derive(Debug)]
struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode. Another server may have replaced the file.
    file: (u64, u64),
}

impl SocketFile {
    fn bind(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            bound => bound,
        }?;
        let file = identity(path)?;
        Ok(Self { listener, path: path.to_owned(), file })
    }
}

/// Whether a path is a socket that no process listens on, as a server leaves it that was killed.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket && BlockingUnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // Otherwise the next server finds that it is abandoned.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Maximum bytes of the peer's data that are read before closing. Closing with unread bytes resets the connection, and
/// the peer may then never see the message.
const READ_BYTES: usize = 16 << 10;

/// Returns the address of a connection's peer; `None` for a Unix socket.
pub(super) fn peer_address(stream: &Stream) -> Option<IpAddr> {
    match stream {
        Either::Left(stream) => stream.peer_addr().ok().map(|address| address.ip()),
        Either::Right(_) => None,
    }
}

/// Sends a short message, which must fit into an empty socket buffer, and closes the connection without waiting.
///
/// # Errors
/// If the peer has disconnected.
pub(super) fn turn_away(stream: Stream, words: &[u8]) -> io::Result<()> {
    fn drain(mut stream: impl Read) -> io::Result<()> {
        match stream.read(&mut [0; READ_BYTES]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
    match stream {
        Either::Left(stream) => {
            let stream = stream.into_std()?;
            (&stream).write_all(words)?;
            stream.shutdown(Shutdown::Write)?;
            drain(&stream)
        }
        Either::Right(stream) => {
            let stream = stream.into_std()?;
            (&stream).write_all(words)?;
            stream.shutdown(Shutdown::Write)?;
            drain(&stream)
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn addresses_names_and_sockets_are_told_from_each_other() {
        let ip = |ip: &str| Ok(Host::Ip(ip.parse().expect("an address")));
        for (given, expected, at_port_9) in [
            ("0.0.0.0", ip("0.0.0.0"), "0.0.0.0:9"),
            ("::1", ip("::1"), "[::1]:9"),
            ("[::1]", ip("::1"), "[::1]:9"),
            ("localhost", ip("127.0.0.1"), "127.0.0.1:9"),
            ("gpu-3.example", Ok(Host::Name("gpu-3.example".to_owned())), "gpu-3.example:9"),
            ("my_host", Ok(Host::Name("my_host".to_owned())), "my_host:9"),
            ("unix:/run/a.sock", Ok(Host::Unix("/run/a.sock".into())), "unix:/run/a.sock"),
        ] {
            let host: Result<Host, InvalidHost> = given.parse();
            assert_eq!(host, expected, "{given}");
            assert_eq!(host.map(|host| host.at(9).to_string()), Ok(at_port_9.to_owned()));
        }
        for given in ["", "256.0.0.1", "1.2.3", "unix:", "a:80", "[::1", "http://a", "a b", "a..b", "-a", "/a", "[a]"] {
            assert_eq!(given.parse::<Host>(), Err(InvalidHost), "{given}");
        }
    }

    #[tokio::test]
    async fn a_name_is_resolved_when_it_is_bound() {
        let named = Endpoint::Name { host: "localhost".to_owned(), port: 0 };
        let (_listener, bound) = named.bind().await.expect("every machine has it");
        assert!(bound.socket().is_some_and(|address| address.ip().is_loopback() && address.port() > 0), "{bound}");
        let unknown = Endpoint::Name { host: "x".repeat(300), port: 0 };
        unknown.bind().await.expect_err("no name is that long");
    }

    #[tokio::test]
    async fn a_socket_replaces_an_abandoned_one_and_no_other_file() {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("socket");
        let endpoint = Endpoint::Unix(path.clone());
        let (first, bound) = endpoint.bind().await.expect("a free path");
        assert_eq!(bound, endpoint);
        let mut client = UnixStream::connect(&path).await.expect("it listens");
        let mut stream = first.accept().await.expect("a connection");
        client.write_all(b"asked").await.expect("room");
        let mut asked = [0; 5];
        stream.read_exact(&mut asked).await.expect("it was sent");
        assert_eq!(&asked, b"asked");
        let taken = endpoint.bind().await.expect_err("another server listens");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists(), "the file goes with the server");

        // A server that was killed leaves its file.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a free path"));
        assert!(path.exists());
        let (second, _) = endpoint.bind().await.expect("nobody listens");
        fs::rename(&path, folder.path().join("other")).expect("it is there");
        fs::write(&path, "text").expect("a file");
        drop(second);
        assert!(path.exists(), "it is another file");
        assert_eq!(endpoint.bind().await.expect_err("no socket").kind(), ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_connection_too_many_is_told_so() {
        let folder = TempDir::new().expect("a folder");
        for endpoint in [Host::LOOPBACK.at(0), Endpoint::Unix(folder.path().join("socket"))] {
            let (listener, bound) = endpoint.bind().await.expect("free");
            let mut client: Stream = match &bound {
                Endpoint::Unix(path) => Either::Right(UnixStream::connect(path).await.expect("it listens")),
                _ => {
                    let address = bound.socket().expect("TCP");
                    Either::Left(TcpStream::connect(address).await.expect("it listens"))
                }
            };
            turn_away(listener.accept().await.expect("a connection"), b"full").expect("it reads");
            let mut words = Vec::new();
            client.read_to_end(&mut words).await.expect("it is closed");
            assert_eq!(words, b"full");
        }
    }
}
