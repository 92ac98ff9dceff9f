//! Work that blocks, off the threads of the runtime.

/// Runs work that blocks on a thread of its own.
///
/// # Errors
/// The message of a panic in the work.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|fault| format!("the loader failed: {fault}"))
}
