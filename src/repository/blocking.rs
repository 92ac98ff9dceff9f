//! Runs blocking work off the threads of the runtime.

/// Runs blocking work on a thread of tokio's blocking pool.
///
/// # Errors
/// Returns the message of a panic in the work.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|fault| format!("the loader failed: {fault}"))
}
