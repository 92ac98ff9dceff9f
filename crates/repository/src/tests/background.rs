//! Versions that are profiled while they serve.

use std::sync::{Arc, atomic::Ordering};

use super::fake::{Directory, PROFILES, explicit, load, start, until};

#[tokio::test]
async fn a_profiled_version_is_replaced_and_requests_in_flight_keep_theirs() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, explicit()).await;
    loader.hold(PROFILES);
    loader.advises.store(1, Ordering::SeqCst);
    load(&repository, "m").await.unwrap();
    let first = repository.resolve("m", "").unwrap();
    loader.release(PROFILES);
    until(&repository, |repository| !Arc::ptr_eq(&first, &repository.resolve("m", "").unwrap())).await;
    assert_eq!(loader.loads_of("m"), [1, 1]);
    assert!(first.servable().is_responsive(), "requests that began on it may end on it");
}

#[tokio::test]
async fn a_model_that_is_unloaded_ends_its_profiling_and_stays_unloaded() {
    let directory = Directory::new();
    directory.model("m").model("next");
    let (repository, loader) = start(&directory, explicit()).await;
    loader.endless.lock().push("m".to_owned());
    loader.advises.store(1, Ordering::SeqCst);
    load(&repository, "m").await.unwrap();
    let in_flight = repository.resolve("m", "").unwrap();
    load(&repository, "next").await.unwrap();
    let waiting = repository.resolve("next", "").unwrap();
    assert_eq!(loader.loads_of("next"), [1], "one at a time");
    repository.unload("m", false).await.unwrap();
    until(&repository, |repository| !Arc::ptr_eq(&waiting, &repository.resolve("next", "").unwrap())).await;
    assert_eq!(loader.given_up.load(Ordering::SeqCst), 1);
    assert_eq!(loader.loads_of("m"), [1], "it is not loaded again");
    assert!(repository.resolve("m", "").is_err());
    drop(in_flight);
}
