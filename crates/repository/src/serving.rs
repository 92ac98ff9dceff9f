//! What serves at this moment: an immutable snapshot that requests read without a lock. Every change replaces it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    ModelVersion, ResolveError,
    residency::Uses,
    rollout::{Caller, Rollout},
};

/// Every model that was ever loaded, by name.
#[derive(Debug, Default)]
pub(super) struct Serving {
    pub(super) models: HashMap<Arc<str>, Arc<Served>>,
    /// Whether other models may be loaded at startup, because stores are still being listed.
    pub(super) is_listing: bool,
    /// Whether headers decide which version of some model answers.
    pub(super) reads_headers: bool,
}

/// Unit of the time in [`Usage::uses`]: half of a number's bits last for years.
const TICK: Duration = Duration::from_millis(1 << 6);

/// When requests for a model arrived. Kept while the model is unloaded.
#[derive(Debug, Default)]
pub(super) struct Usage {
    last_ns: AtomicU64,
    hits: AtomicU64,
    /// [`Uses`] as the bits of the count, and the time in [`TICK`]s.
    uses: AtomicU64,
}

impl Usage {
    /// Records a request that found the model loaded.
    pub(super) fn hit(&self, now: Duration) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.last_ns.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let Uses { count, at } = self.uses().with_one(now);
        let ticks = u32::try_from(at.as_millis() / TICK.as_millis()).unwrap_or(u32::MAX);
        // Of two requests at once, one may not count.
        self.uses.store(u64::from(count.to_bits()) << 32 | u64::from(ticks), Ordering::Relaxed);
    }

    /// Returns how much the model has been used lately.
    pub(super) fn uses(&self) -> Uses {
        let packed = self.uses.load(Ordering::Relaxed);
        Uses { count: f32::from_bits((packed >> 32) as u32), at: TICK * (packed as u32) }
    }

    /// Returns when the last request arrived.
    pub(super) fn last(&self) -> Duration {
        Duration::from_nanos(self.last_ns.load(Ordering::Relaxed))
    }

    /// Returns how many requests found the model loaded.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

/// The versions of one model.
#[derive(Debug, Default)]
pub(super) struct Served {
    /// Ready versions, ascending.
    pub(super) ready: Vec<Arc<ModelVersion>>,
    /// Numbers of versions that are loading, failed to load or were unloaded.
    pub(super) unready: Vec<i64>,
    /// Whether the model is still being loaded at startup, when its versions may be unknown.
    pub(super) is_loading: bool,
    /// Whether a request loads it.
    pub(super) is_on_demand: bool,
    pub(super) usage: Arc<Usage>,
}

impl Served {
    /// Returns how requests are divided among the versions, as the latest load says.
    #[inline]
    pub(super) fn rollout(&self) -> Option<&Arc<Rollout>> {
        self.ready.last()?.rollout()
    }

    /// Returns the version for a client's request that names none; `None` if the latest one answers.
    #[inline]
    pub(super) fn choose(&self, model: &str, caller: &Caller) -> Option<&Arc<ModelVersion>> {
        self.rollout()?.choose(model, &self.ready, caller)
    }
}

impl Serving {
    /// Returns the version that a request names; an empty string selects the latest.
    pub(super) fn resolve(&self, name: &str, version: &str) -> Result<&Arc<ModelVersion>, ResolveError> {
        self.find(name, version).map(|(_, version)| version)
    }

    /// As [`Self::resolve`], with the model that has the version.
    #[inline]
    pub(super) fn find(&self, name: &str, version: &str) -> Result<(&Served, &Arc<ModelVersion>), ResolveError> {
        let wanted = parse_version(version)?;
        let Some(served) = self.models.get(name) else {
            let name = name.to_owned();
            return Err(if self.is_listing {
                ResolveError::Loading { name }
            } else {
                ResolveError::UnknownModel { name }
            });
        };
        let Served { ready, unready, is_loading, is_on_demand, .. } = &**served;
        if ready.is_empty() && *is_on_demand {
            return Err(ResolveError::NotLoaded { name: name.to_owned() });
        }
        let Some(wanted) = wanted else {
            let latest = ready.last().map(|version| (&**served, version));
            return latest.ok_or_else(|| match is_loading {
                true => ResolveError::Loading { name: name.to_owned() },
                false => ResolveError::NoAvailableVersion { name: name.to_owned() },
            });
        };
        let are_versions_known = !(*is_loading && ready.is_empty() && unready.is_empty());
        let found = ready.iter().find(|version| version.spec().version == wanted);
        found.map(|version| (&**served, version)).ok_or_else(|| {
            let name = name.to_owned();
            match unready.contains(&wanted) {
                true => ResolveError::UnreadyVersion { name, version: wanted },
                false if !are_versions_known => ResolveError::Loading { name },
                false => ResolveError::UnknownVersion { name, version: wanted },
            }
        })
    }

    /// Returns all ready versions, by name and version.
    pub(super) fn all(&self) -> Vec<Arc<ModelVersion>> {
        let mut models: Vec<_> = self.models.iter().collect();
        models.sort_by_key(|(name, _)| *name);
        models.into_iter().flat_map(|(_, versions)| versions.ready.iter().cloned()).collect()
    }
}

#[inline]
fn parse_version(given: &str) -> Result<Option<i64>, ResolveError> {
    if given.is_empty() {
        return Ok(None);
    }
    let digits = given.bytes().all(|byte| byte.is_ascii_digit());
    match given.parse() {
        Ok(version) if digits && version > 0 => Ok(Some(version)),
        _ => Err(ResolveError::BadVersion { given: given.to_owned() }),
    }
}
