//! The TLS settings of a port, which follow the files that they are read from.

use std::{fmt, fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{sync::Mutex, task::spawn_blocking, time::sleep};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use tracing::{error, info};

use super::{TlsConfig, TlsError, Uncertified, settings};

/// Time between two checks of the files.
const CHECK_PERIOD: Duration = Duration::from_millis(500);

/// The certificate, the key and the client authorities of one port. Connections keep those with which they began.
pub struct Certificates {
    files: TlsConfig,
    alpn: &'static [u8],
    uncertified: Uncertified,
    current: ArcSwap<ServerConfig>,
    /// The files as they were when they were last read, whether or not they could be used.
    read: Mutex<States>,
}

impl Certificates {
    /// Reads the files of a port that serves the protocol with this ALPN name.
    ///
    /// # Errors
    /// If a file cannot be read, or if its content is unusable.
    pub(crate) fn read(
        files: &TlsConfig,
        alpn: &'static [u8],
        uncertified: Uncertified,
    ) -> Result<Arc<Self>, TlsError> {
        let states = States::of(files);
        let current = ArcSwap::from_pointee(settings(files, alpn, uncertified)?);
        Ok(Arc::new(Self { files: files.clone(), alpn, uncertified, current, read: Mutex::new(states) }))
    }

    /// Returns the settings for a new connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Reads the files again. If they cannot be used, the error is logged and the former settings stay.
    pub async fn reload(self: &Arc<Self>) {
        let mut read = self.read.lock().await;
        let this = Arc::clone(self);
        let reading = spawn_blocking(move || {
            // Before the contents: a change that comes between the two is noticed by the next check.
            let states = States::of(&this.files);
            (states, settings(&this.files, this.alpn, this.uncertified))
        });
        let Ok((states, settings)) = reading.await else { return };
        *read = states;
        let cert = self.files.cert.display();
        match settings {
            Ok(settings) => {
                self.current.store(Arc::new(settings));
                info!(%cert, "certificates were read again; new connections use them");
            }
            Err(error) => error!(%cert, %error, "certificates cannot be used; the former ones stay"),
        }
    }

    /// Reads the files again whenever they have changed. Never returns.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut changed = None;
        loop {
            sleep(CHECK_PERIOD).await;
            let this = Arc::clone(&self);
            let Ok(states) = spawn_blocking(move || States::of(&this.files)).await else { continue };
            if states == *self.read.lock().await {
                changed = None;
            } else if changed.as_ref() == Some(&states) {
                self.reload().await;
            } else {
                // A certificate and its key are two files. They are read once neither has changed for a period.
                changed = Some(states);
            }
        }
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Certificates").field("files", &self.files).finish_non_exhaustive()
    }
}

/// What tells whether files were changed or replaced.
#[derive(Debug, PartialEq, Eq)]
struct States([Option<State>; 3]);

/// Device, inode, length and times of a file, behind links.
#[derive(Debug, PartialEq, Eq)]
struct State {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl States {
    fn of(files: &TlsConfig) -> Self {
        let state = |path: &Path| {
            let file = fs::metadata(path).ok()?;
            Some(State {
                file: (file.dev(), file.ino()),
                bytes: file.size(),
                modified: (file.mtime(), file.mtime_nsec()),
                changed: (file.ctime(), file.ctime_nsec()),
            })
        };
        Self([state(&files.cert), state(&files.key), files.client_ca.as_deref().and_then(state)])
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use tempfile::TempDir;

    use super::*;

    struct Files {
        folder: TempDir,
        config: TlsConfig,
    }

    impl Files {
        fn new() -> Self {
            let folder = TempDir::new().expect("a folder");
            let config =
                TlsConfig { cert: folder.path().join("cert.pem"), key: folder.path().join("key.pem"), client_ca: None };
            let files = Self { folder, config };
            files.write_pair();
            files
        }

        /// Replaces a file as certificate managers do.
        fn replace(&self, path: &PathBuf, content: &str) {
            let new = self.folder.path().join("new");
            fs::write(&new, content).expect("a file");
            fs::rename(new, path).expect("the same file system");
        }

        fn write_pair(&self) {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
            self.replace(&self.config.cert, &cert.pem());
            self.replace(&self.config.key, &signing_key.serialize_pem());
        }
    }

    /// Waits until a check has found the files as they are, and returns whether the settings are others than before.
    async fn settled(certificates: &Arc<Certificates>, before: &Arc<ServerConfig>) -> bool {
        while *certificates.read.lock().await != States::of(&certificates.files) {
            sleep(CHECK_PERIOD).await;
        }
        !Arc::ptr_eq(before, &certificates.current.load_full())
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_change_are_read_and_a_broken_pair_leaves_the_former_one() {
        let files = Files::new();
        let certificates = Certificates::read(&files.config, b"h2", Uncertified::Refused).expect("a pair");
        let following = tokio::spawn(Arc::clone(&certificates).follow());
        let first = certificates.current.load_full();

        files.write_pair();
        assert!(settled(&certificates, &first).await, "a new pair");
        let second = certificates.current.load_full();

        files.replace(&files.config.cert, "no certificate");
        assert!(!settled(&certificates, &second).await, "a broken file");
        fs::remove_file(&files.config.key).expect("it was there");
        assert!(!settled(&certificates, &second).await, "a missing file");

        files.write_pair();
        assert!(settled(&certificates, &second).await, "a new pair after a broken one");
        following.abort();
    }

    #[tokio::test]
    async fn a_request_to_reload_reads_files_that_look_the_same() {
        let files = Files::new();
        let certificates = Certificates::read(&files.config, b"h2", Uncertified::Refused).expect("a pair");
        let first = certificates.current.load_full();
        certificates.reload().await;
        assert!(!Arc::ptr_eq(&first, &certificates.current.load_full()));
    }
}
