//! Which version of a model answers a request that names none, and which one answers it too, for comparison.
//!
//! `shadow` runs and compares the second answers. Reading configurations must not live here.

mod compare;
mod shadow;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use http::{HeaderMap, HeaderName};
use paternoster_config::{ConfigError, Origin, Settings};
use paternoster_observe::budget::Budget;
use sha2::{Digest, Sha256};

use self::shadow::Shadow;
use super::{LoadError, ModelVersion, Requester};

/// Largest relative difference that counts as none, unless the configuration says so.
const DEFAULT_TOLERANCE: f64 = 1e-4;

/// Who sent a request: its client, and its headers where they may decide which version answers it.
#[derive(Clone, Debug)]
pub struct Caller {
    headers: Option<Arc<HeaderMap>>,
    requester: Requester,
}

impl Caller {
    /// Keeps a copy of the headers.
    #[inline]
    pub(super) fn new(headers: Option<&HeaderMap>, requester: Requester) -> Self {
        Self { headers: headers.map(|headers| Arc::new(headers.clone())), requester }
    }

    pub(super) fn requester(&self) -> Requester {
        self.requester
    }

    fn value(&self, header: &HeaderName) -> Option<&[u8]> {
        Some(self.headers.as_ref()?.get(header)?.as_bytes())
    }
}

/// How the requests of a model are divided among its versions. All versions of one load share it.
#[derive(Debug)]
pub(super) struct Rollout {
    /// Shares by version, ascending; empty if all requests go to the latest version.
    traffic: Vec<(i64, u32)>,
    /// Header that decides; `None`: each request at random.
    header: Option<HeaderName>,
    shadow: Option<Arc<Shadow>>,
}

impl Rollout {
    /// Reads the configuration of a model of which `versions` are loaded.
    ///
    /// # Errors
    /// Rejects versions that are not loaded, and what can have no effect.
    pub(super) fn read(settings: &Settings, versions: &[i64], origin: &Origin) -> Result<Option<Self>, ConfigError> {
        let Some(given) = &settings.own.rollout else { return Ok(None) };
        let refuse = |key: &str, message: String| Err(origin.error(&format!("rollout.{key}"), message));
        let loaded = |key: &str, version: i64| {
            if versions.contains(&version) {
                return Ok(version);
            }
            let served: Vec<String> = versions.iter().map(ToString::to_string).collect();
            let message = format!(
                "expected a version that is served, which 'version_policy' and the directories decide ({}), but found \
                 {version}",
                served.join(", ")
            );
            Err(origin.error(&format!("rollout.{key}"), message))
        };
        let mut traffic = Vec::new();
        for (version, share) in given.traffic.iter().flat_map(|traffic| &traffic.0) {
            traffic.push((loaded("traffic", version.0)?, share.0));
        }
        if !traffic.is_empty() && traffic.iter().all(|(_, share)| *share == 0) {
            return refuse("traffic", "expected a share above 0 for one version at least".to_owned());
        }
        if given.header.is_some() && traffic.is_empty() {
            return refuse("header", "it decides between versions: expected 'traffic' too".to_owned());
        }
        if given.header.is_none() && !traffic.is_empty() && settings.has_sequences() {
            let message = "requests of a sequence must go to one version: expected 'header' too, the name of a header \
                           that all requests of a sequence have with the same value";
            return refuse("traffic", message.to_owned());
        }
        if given.tolerance.is_some() && given.shadow.is_none() {
            return refuse("tolerance", "it is for comparing answers: expected 'shadow' too".to_owned());
        }
        if given.traffic.is_none() && given.shadow.is_none() {
            return Err(origin.error("rollout", "expected 'traffic' or 'shadow', without which it has no effect"));
        }
        if given.shadow.is_some() && (settings.has_sequences() || settings.is_decoupled()) {
            let message = "answers of sequences and of decoupled models are not compared: remove it";
            return refuse("shadow", message.to_owned());
        }
        if given.shadow.is_some() && versions.len() == 1 {
            let message =
                format!("expected another version that clients are answered by, but only {versions:?} is served");
            return refuse("shadow", message);
        }
        let shadow = given.shadow.as_ref().map(|version| loaded("shadow", version.0)).transpose()?;
        let tolerance = given.tolerance.map_or(DEFAULT_TOLERANCE, |tolerance| tolerance.0);
        let header = given.header.as_ref().and_then(|header| header.name());
        Ok(Some(Self { traffic, header, shadow: shadow.map(|version| Arc::new(Shadow::new(version, tolerance))) }))
    }

    /// Lets the versions of a load find the one that answers for comparison. Copies of requests count in `room`.
    ///
    /// # Errors
    /// Replaces that version by the reason if it cannot take the requests of the others.
    pub(super) fn bind(&self, results: &mut BTreeMap<i64, Result<Arc<ModelVersion>, LoadError>>, room: &Arc<Budget>) {
        let Some(shadow) = &self.shadow else { return };
        let Some(Ok(target)) = results.get(&shadow.version()) else { return };
        let target = Arc::clone(target);
        let others = results.values().filter_map(|result| result.as_ref().ok());
        match others.filter(|other| !Arc::ptr_eq(other, &target)).try_for_each(|other| shadow.fits(&target, other)) {
            Ok(()) => shadow.bind(&target, room),
            Err(error) => drop(results.insert(shadow.version(), Err(error))),
        }
    }

    /// Whether the headers of requests decide which version answers them.
    pub(super) fn reads_headers(&self) -> bool {
        self.header.is_some()
    }

    /// Returns the version for a request that names none. `ready` is ascending. `None` if no share decides.
    ///
    /// The newest versions have the lowest fractions, so that a growing share keeps the clients that a version has.
    pub(super) fn choose<'v>(
        &self,
        model: &str,
        ready: &'v [Arc<ModelVersion>],
        caller: &Caller,
    ) -> Option<&'v Arc<ModelVersion>> {
        if self.traffic.is_empty() {
            return None;
        }
        let fraction = match &self.header {
            None => random(),
            Some(header) => match caller.value(header) {
                Some(value) => fraction_of(model, value),
                None => return self.largest(ready),
            },
        };
        let number = pick(self.shares(ready), fraction)?;
        ready.iter().find(|version| version.spec().version == number)
    }

    /// Returns the version with the largest share, the newer one of two: for requests without the header, and for the
    /// steps of pipelines. `None` if no share decides.
    pub(super) fn largest<'v>(&self, ready: &'v [Arc<ModelVersion>]) -> Option<&'v Arc<ModelVersion>> {
        let (number, _) = self.shares(ready).max_by_key(|(number, share)| (*share, *number))?;
        ready.iter().find(|version| version.spec().version == number)
    }

    /// Returns the shares of ready versions, ascending by version.
    fn shares<'v>(
        &'v self,
        ready: &'v [Arc<ModelVersion>],
    ) -> impl DoubleEndedIterator<Item = (i64, u32)> + Clone + 'v {
        let is_ready = |number: i64| ready.iter().any(|version| version.spec().version == number);
        self.traffic.iter().copied().filter(move |(number, share)| *share > 0 && is_ready(*number))
    }

    /// Returns the version that answers for comparison, if one does.
    #[inline]
    pub(super) fn shadow(&self) -> Option<&Arc<Shadow>> {
        self.shadow.as_ref()
    }
}

impl Drop for Rollout {
    fn drop(&mut self) {
        if let Some(shadow) = &self.shadow {
            shadow.end();
        }
    }
}

/// Returns the version whose part of the shares a fraction of 2⁶⁴ falls in; newer versions have lower fractions.
fn pick(shares: impl DoubleEndedIterator<Item = (i64, u32)> + Clone, fraction: u64) -> Option<i64> {
    let total: u128 = shares.clone().map(|(_, share)| u128::from(share)).sum();
    let mut left = (u128::from(fraction) * total) >> 64;
    for (number, share) in shares.rev() {
        match left.checked_sub(u128::from(share)) {
            Some(rest) => left = rest,
            None => return Some(number),
        }
    }
    None
}

/// Returns the fraction of 2⁶⁴ for a header's value: the same at all times and on all servers. The model's name is in
/// it, so that it is not always the same clients who get new versions.
fn fraction_of(model: &str, value: &[u8]) -> u64 {
    let hash = Sha256::new().chain_update((model.len() as u64).to_le_bytes()).chain_update(model).chain_update(value);
    let bytes: [u8; 32] = hash.finalize().into();
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns a random fraction of 2⁶⁴: the hash of a counter under the process's random key.
fn random() -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    KEY.hash_one(COUNT.fetch_add(1, Ordering::Relaxed))
}
