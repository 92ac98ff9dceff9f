//! A complete server over repositories whose models no engine can run: everything that needs no model works.

use std::{fs, net::SocketAddr, path::Path, sync::mpsc};

use bytes::Bytes;
use parking_lot::Mutex;
use paternoster_executor::{ModelHandle, PoolOptions};
use paternoster_observe::LogOptions;
use paternoster_onnx::Signature;
use paternoster_repository::{LoadAttempt, LoadError, LoadErrorKind, ResolvedVersion};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    super::{
        SUCCESS,
        serve::{EXIT_FAULT, load_and_serve, serve_until_ended},
        tests::serve,
    },
    *,
};

/// The end of a server that has done everything.
const CLEAN: Ending = Ending { in_time: true, is_recorded: true };

/// Rejects every model; if there is a gate, only after the test opens it.
#[derive(Default)]
struct NoEngine {
    gate: Option<Mutex<mpsc::Receiver<()>>>,
}

impl Loader for NoEngine {
    fn load(&self, _: ResolvedVersion, _: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        Err(LoadError::new(LoadErrorKind::Engine, "there is no engine"))
    }

    fn signature(&self, _: &Path, _: Option<&Bytes>) -> Result<Signature, LoadError> {
        if let Some(gate) = &self.gate {
            // Ends with a message, or when the test ends.
            let _ = gate.lock().recv();
        }
        Err(LoadError::new(LoadErrorKind::Engine, "there is no engine"))
    }
}

fn pool() -> StartedPool {
    pool_with(NoEngine::default())
}

fn pool_with(engine: NoEngine) -> StartedPool {
    let pool = Pool::start(&PoolOptions::default()).expect("threads for the pool");
    let (cards, recording) = (Err("the test has none".to_owned()), TimelineRecording::default());
    StartedPool { pool, cards, loader: Arc::new(engine), recording, began: Instant::now() }
}

/// Creates a pool whose loads wait for a message, or for the end of its sender.
fn held_pool() -> (mpsc::Sender<()>, StartedPool) {
    let (release, gate) = mpsc::channel();
    (release, pool_with(NoEngine { gate: Some(Mutex::new(gate)) }))
}

/// Creates a repository with one model directory for each name.
fn repository(models: &[&str]) -> TempDir {
    let directory = TempDir::new().expect("a directory for the test");
    for model in models {
        let version = directory.path().join(model).join("1");
        fs::create_dir_all(&version).expect("a directory for the model");
        fs::write(version.join("model.onnx"), b"no model").expect("a file for the model");
    }
    directory
}

/// Starts a server on free local ports.
async fn start(directory: &TempDir, flags: &[&str]) -> Result<Server, StartError> {
    start_with(directory, flags, pool()).await
}

async fn start_with(directory: &TempDir, flags: &[&str], pool: StartedPool) -> Result<Server, StartError> {
    let (args, server, startup) = open_with(directory, flags, pool).await?;
    server.load_models(&args, startup).await?;
    Ok(server)
}

/// Opens the ports of a server whose models are not loaded yet.
async fn open_with(
    directory: &TempDir,
    flags: &[&str],
    pool: StartedPool,
) -> Result<(ServeArgs, Server, Startup), StartError> {
    let local =
        ["--grpc-address=127.0.0.1", "--http-address=127.0.0.1", "--grpc-port=0", "--http-port=0", "--metrics-port=0"];
    let mut args = serve(&[&local[..], flags].concat());
    args.repository.directories = vec![directory.path().display().to_string()];
    let (log, _) = Logging::detached(LogOptions::default());
    let budgets = limits::budgets(&args.limits).map_err(StartError::Limits)?;
    let (server, startup) = Server::open(&args, log, budgets, pool).await?;
    Ok((args, server, startup))
}

fn http_address(server: &Server) -> Option<SocketAddr> {
    server.http_endpoint().and_then(Endpoint::socket)
}

async fn get(address: Option<SocketAddr>, path: &str) -> String {
    let mut stream = TcpStream::connect(address.expect("the endpoint is on")).await.expect("the server listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the server answers");
    answer
}

#[tokio::test]
async fn an_empty_repository_makes_a_ready_server_on_three_ports() {
    let directory = repository(&[]);
    let server = start(&directory, &[]).await.expect("nothing stands in the way");
    let grpc = server.grpc.as_ref().and_then(|grpc| grpc.endpoint().socket()).expect("gRPC is on");
    assert!(TcpStream::connect(grpc).await.is_ok(), "gRPC listens");
    let (http, metrics) = (http_address(&server), server.metrics_endpoint().and_then(Endpoint::socket));
    assert!(get(http, "/v2/health/ready").await.starts_with("HTTP/1.1 200"), "no model, nothing missing");
    assert!(get(http, "/v2").await.contains("\"name\":\"triton\""), "metadata name the server");
    assert!(get(metrics, "/metrics").await.contains("paternoster_scheduler_steps_total 0"), "the pool is counted");

    assert_eq!(server.shutdown().await, CLEAN, "nothing was in flight");
    for address in [Some(grpc), http, metrics].into_iter().flatten() {
        assert!(TcpStream::connect(address).await.is_err(), "{address} is closed");
    }
}

#[tokio::test]
async fn a_server_whose_scheduler_panics_is_not_ready_and_ends_by_itself_with_its_own_exit_code() {
    let directory = repository(&[]);
    let started = pool();
    let executor = Arc::clone(&started.pool);
    let server = start_with(&directory, &[], started).await.expect("nothing stands in the way");
    let http = http_address(&server);
    assert!(get(http, "/v2/health/ready").await.starts_with("HTTP/1.1 200"));
    executor.fail_now();
    assert!(get(http, "/v2/health/ready").await.starts_with("HTTP/1.1 400"), "readiness is off");
    assert!(get(http, "/v2/health/live").await.starts_with("HTTP/1.1 200"), "until it ends it answers");
    let life = serve(&[]).life;
    let code = serve_until_ended(server, &executor, &life, async || std::future::pending().await).await;
    assert_eq!(code, EXIT_FAULT, "no signal came");
    let address = http.expect("it was served");
    assert!(TcpStream::connect(address).await.is_err(), "{address} is closed");
}

#[tokio::test]
async fn a_bad_model_makes_the_server_not_ready_and_leaves_it_alive() {
    let directory = repository(&["broken"]);
    let server = start(&directory, &[]).await.expect("a bad model does not end the server");
    let http = http_address(&server);
    assert!(get(http, "/v2/health/live").await.starts_with("HTTP/1.1 200"));
    assert!(get(http, "/v2/health/ready").await.starts_with("HTTP/1.1 400"));
    assert!(get(http, "/v2/models/broken/ready").await.starts_with("HTTP/1.1 400"));

    let lenient = start(&directory, &["--strict-readiness=false"]).await.expect("a bad model does not end the server");
    assert!(get(http_address(&lenient), "/v2/health/ready").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn with_exit_on_error_a_bad_model_is_named_and_nothing_is_served() {
    let directory = repository(&["broken"]);
    let error = start(&directory, &["--exit-on-error"]).await.expect_err("a model failed").to_string();
    assert!(error.starts_with("1 model failed to load and --exit-on-error is set: broken"), "{error}");
}

#[tokio::test]
async fn while_models_load_the_server_is_live_and_says_so_of_the_models() {
    let directory = repository(&["slow"]);
    let (release, pool) = held_pool();
    let (args, server, startup) = open_with(&directory, &[], pool).await.expect("nothing stands in the way");
    let http = http_address(&server);
    let asked = async {
        assert!(get(http, "/v2/health/live").await.starts_with("HTTP/1.1 200"));
        assert!(get(http, "/v2/health/ready").await.starts_with("HTTP/1.1 400"));
        assert!(get(http, "/v2/models/slow/ready").await.starts_with("HTTP/1.1 400"));
        for path in ["/v2/models/slow", "/v2/models/slow/config", "/v2/models/slow/stats"] {
            let answer = get(http, path).await;
            assert!(answer.starts_with("HTTP/1.1 503"), "{path}: {answer}");
            assert!(answer.contains("Server not ready: model 'slow' is still being loaded"), "{path}: {answer}");
        }
        assert!(get(http, "/v2/models/other").await.starts_with("HTTP/1.1 404"), "not every name is of a model");
        release.send(()).expect("the load waits");
    };
    let (loaded, ()) = tokio::join!(server.load_models(&args, startup), asked);
    loaded.expect("a bad model does not end the server");
    assert!(get(http, "/v2/models/slow").await.starts_with("HTTP/1.1 404"), "it failed to load");
}

#[tokio::test]
async fn a_signal_while_models_load_ends_the_server_in_order() {
    let directory = repository(&["slow"]);
    let (release, pool) = held_pool();
    let executor = Arc::clone(&pool.pool);
    // The server was never ready, so no load balancer sends requests to it and no drain is needed.
    let flags = ["--drain-delay-secs=3600"];
    let (args, server, startup) = open_with(&directory, &flags, pool).await.expect("nothing stands in the way");
    let http = http_address(&server);
    let (signals, mut received) = tokio::sync::mpsc::channel(1);
    let served = load_and_serve(server, startup, &executor, &args, async || {
        received.recv().await.expect("a second signal would end the server at once, and none comes")
    });
    let asked = async {
        assert!(get(http, "/v2/health/live").await.starts_with("HTTP/1.1 200"), "it serves while it loads");
        signals.send("SIGTERM").await.expect("it listens");
    };
    let (code, ()) = tokio::join!(served, asked);
    let code = code.expect("no model has to be there");
    assert_eq!(code, SUCCESS);
    assert!(TcpStream::connect(http.expect("HTTP is on")).await.is_err(), "the port is closed");
    drop(release);
}

#[tokio::test]
async fn endpoints_that_are_off_do_not_listen() {
    let directory = repository(&[]);
    let flags = ["--allow-grpc=false", "--allow-metrics=false"];
    let server = start(&directory, &flags).await.expect("HTTP alone is enough");
    assert!(server.grpc.is_none() && server.metrics.is_none());
    assert!(get(http_address(&server), "/v2/health/live").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn the_timeline_is_served_while_it_is_recorded_and_written_at_the_end() {
    let directory = repository(&[]);
    let file = directory.path().join("trace.json");
    let flag = format!("--timeline-file={}", file.display());
    let recording = TimelineRecording::start(&serve(&[&flag]).timeline).expect("a file that can be written");
    let timeline = Arc::clone(&recording.timeline);
    let server =
        start_with(&directory, &[], StartedPool { recording, ..pool() }).await.expect("nothing stands in the way");

    timeline.arrived(1_000, 1, 0, 1);
    timeline.arrived(9_000, 2, 0, 1);
    let served = get(http_address(&server), "/v2/timeline").await;
    assert!(served.contains("request 1 · queued"), "{served}");
    assert_eq!(server.shutdown().await, CLEAN, "nothing was in flight");
    let written = fs::read_to_string(&file).expect("the file is there");
    assert!(written.contains("request 1 · queued"), "{written}");
}

#[tokio::test]
async fn a_timeline_that_cannot_be_written_shows_in_the_exit_status() {
    let directory = repository(&[]);
    // A file on a full disk.
    let recording =
        TimelineRecording::start(&serve(&["--timeline-file=/dev/full"]).timeline).expect("it can be opened");
    let server =
        start_with(&directory, &[], StartedPool { recording, ..pool() }).await.expect("nothing stands in the way");
    assert_eq!(server.shutdown().await, Ending { in_time: true, is_recorded: false });
}

#[tokio::test(start_paused = true)]
async fn while_draining_the_server_is_not_ready_and_still_answers() {
    let directory = repository(&[]);
    let server = start(&directory, &["--drain-delay-secs=3600"]).await.expect("nothing stands in the way");
    let http = http_address(&server);
    let readiness = Arc::clone(&server.readiness);
    let mut shutdown = Box::pin(server.shutdown());
    tokio::select! {
        biased;
        _ = &mut shutdown => panic!("the drain delay has not passed"),
        () = std::future::ready(()) => {}
    }
    assert!(!readiness.ready(), "readiness goes off first");
    // The response needs no timer, so the paused clock does not advance before it arrives.
    let answer = tokio::task::spawn_blocking(move || blocking_get(http.expect("HTTP is on"))).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400"), "not ready, but answering: {answer}");
    assert_eq!(shutdown.await, CLEAN, "nothing was in flight");
}

fn blocking_get(address: SocketAddr) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("the server listens");
    stream
        .write_all(b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[tokio::test]
async fn a_repository_that_is_nowhere_is_refused_with_the_forms_that_there_are() {
    let mut args = serve(&[]);
    args.repository.directories = vec!["hdfs://name/models".to_owned()];
    let (log, _) = Logging::detached(LogOptions::default());
    let error = Server::open(&args, log, Budgets::default(), pool()).await.expect_err("no such store").to_string();
    assert!(error.contains("'hdfs://name/models'") && error.contains("expected s3://bucket/path, "), "{error}");
}

#[tokio::test]
async fn a_port_in_use_names_the_endpoint() {
    let directory = repository(&[]);
    let first = start(&directory, &[]).await.expect("nothing stands in the way");
    let port = http_address(&first).expect("HTTP is on").port();
    let error = start(&directory, &[&format!("--http-port={port}")]).await.expect_err("the port is taken").to_string();
    assert!(error.starts_with(&format!("HTTP: cannot listen on 127.0.0.1:{port}: ")), "{error}");
}
