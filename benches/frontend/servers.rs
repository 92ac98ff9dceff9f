//! The servers under measurement, as processes of their own on loopback.

use std::{
    env,
    error::Error,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// tonic and a handler that gives the bytes back.
    Echo,
    /// This project with the identity model.
    Paternoster,
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    /// `host:port` of its gRPC service.
    pub(crate) grpc: String,
    /// `host:port` of its HTTP port, where it has one.
    pub(crate) http: Option<String>,
}

/// The program that is measured: the one that `PATERNOSTER` names. Cargo builds its own for a benchmark with the
/// features that tests need, such as a clock that can be paused, which cost a third of the rate.
fn program() -> OsString {
    env::var_os("PATERNOSTER").unwrap_or_else(|| env!("CARGO_BIN_EXE_paternoster").into())
}

/// A repository with the identity model alone, in a temporary folder.
pub(crate) fn identity_repository() -> Result<tempfile::TempDir, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let status = Command::new(program())
        .args(["models", "--only", "identity", "--out"])
        .arg(folder.path())
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        return Err("building the identity model failed".into());
    }
    Ok(folder)
}

impl Server {
    /// Starts a server on free ports and waits until it says that it is ready. The flags are for `paternoster serve`.
    pub(crate) fn start(kind: Kind, repository: &Path, flags: &[String]) -> Result<Self, Box<dyn Error>> {
        match kind {
            Kind::Echo => {
                let mut child = {
                    let mut command = Command::new(std::env::current_exe()?);
                    command.arg("--echo").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?
                };
                let mut address = String::new();
                BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut address)?;
                Ok(Self { child, grpc: address.trim().to_owned(), http: None })
            }
            Kind::Paternoster => {
                let mut child = Command::new(program())
                    .arg("serve")
                    .arg("--model-repository")
                    .arg(repository)
                    .args(["--grpc-address=127.0.0.1", "--grpc-port=0", "--http-address=127.0.0.1", "--http-port=0"])
                    .arg("--allow-metrics=false")
                    .args(flags)
                    .stderr(Stdio::piped())
                    .spawn()?;
                let mut lines = BufReader::new(child.stderr.take().ok_or("no output")?).lines();
                let ready = lines.by_ref().map_while(Result::ok).find_map(|line| addresses(&line));
                let Some((grpc, http)) = ready else {
                    child.kill()?;
                    return Err("the server ended before it was ready".into());
                };
                // Whatever it says later must not fill the pipe.
                std::thread::spawn(move || lines.for_each(drop));
                Ok(Self { child, grpc, http: Some(http) })
            }
        }
    }

    /// CPU time the server used so far, user and system.
    pub(crate) fn cpu_time(&self) -> Result<Duration, Box<dyn Error>> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit_once(')').ok_or("unexpected /proc/<pid>/stat")?.1;
        let mut ticks = fields.split_whitespace().skip(11);
        let mut next = || ticks.next().and_then(|text| text.parse::<u64>().ok()).ok_or("unexpected /proc/<pid>/stat");
        // The kernel reports hundredths of a second to user space on all supported platforms.
        Ok(Duration::from_millis((next()? + next()?) * 10))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended by itself needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of an idle server per second of wall clock, as a share of one core.
#[expect(clippy::disallowed_methods, reason = "the server is watched while it has nothing to do")]
pub(crate) fn idle_cpu(repository: &Path, watched: Duration) -> Result<f64, Box<dyn Error>> {
    let server = Server::start(Kind::Paternoster, repository, &[])?;
    let before = server.cpu_time()?;
    std::thread::sleep(watched);
    let used = server.cpu_time()? - before;
    Ok(used.as_secs_f64() / watched.as_secs_f64())
}

/// The addresses of gRPC and HTTP in the server's line "… is ready after …".
fn addresses(line: &str) -> Option<(String, String)> {
    if !line.contains("is ready after") {
        return None;
    }
    let of = |service: &str| {
        let address = line.split_once(service)?.1.trim_start();
        Some(address.chars().take_while(|letter| letter.is_ascii_digit() || matches!(letter, '.' | ':')).collect())
    };
    Some((of("GRPCInferenceService")?, of("HTTPService")?))
}
