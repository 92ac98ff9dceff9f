//! What loaded models take, and why some of them may not leave.

use std::{collections::HashMap, sync::Arc, time::Duration};

use paternoster_observe::ModelMemory;

use super::{Model, State, Table};
use crate::residency::{Hold, Resident};

/// What the ready versions of a model take, and what is known of their load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    pub(crate) bytes: usize,
    pub(crate) loaded_at: Duration,
    pub(crate) load_took: Duration,
    /// Whether it stays loaded.
    pub(crate) is_pinned: bool,
    /// Whether a client sent its files.
    pub(crate) is_sent: bool,
}

/// The memory of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Bytes as estimated from its files.
    pub(crate) estimated_bytes: usize,
    /// Bytes as measured when it was loaded.
    pub(crate) bytes: Option<usize>,
}

impl Table {
    /// Records what a model that has just been loaded takes.
    pub(crate) fn settle(&mut self, name: &str, footprint: Footprint, measured: Measured) {
        if let Some(model) = self.models.change(name).filter(|model| model.serves()) {
            model.footprint = Some(footprint);
            model.measured = Some(measured);
        }
    }

    /// Returns the bytes that a model took when it was measured, if its files still have the estimate of then.
    pub(crate) fn measured(&self, name: &str, estimated_bytes: usize) -> Option<usize> {
        let measured = self.models.get(name)?.measured?;
        measured.bytes.filter(|_| measured.estimated_bytes == estimated_bytes)
    }

    /// Returns the memory of each loaded model.
    pub(crate) fn memory(&self) -> Vec<ModelMemory> {
        let loaded = self.models.iter().filter(|(_, model)| model.footprint.is_some());
        let memory = loaded.filter_map(|(name, model)| {
            let Measured { estimated_bytes, bytes: measured_bytes } = model.measured?;
            Some(ModelMemory { name: name.clone(), estimated_bytes, measured_bytes })
        });
        memory.collect()
    }

    /// Returns how much a model was used lately.
    pub(crate) fn uses(&self, name: &str, now: Duration) -> f32 {
        self.models.get(name).map_or(0.0, |model| model.usage.uses().count_at(now))
    }

    /// Lets a loaded model take no further requests, which wait as if it were unloaded, or take them again. Returns
    /// whether that is a change.
    pub(crate) fn drain(&mut self, name: &str, is_draining: bool) -> bool {
        let model = self.models.change(name).filter(|model| model.serves() && model.is_draining != is_draining);
        model.map(|model| model.is_draining = is_draining).is_some()
    }

    pub(crate) fn is_draining(&self, name: &str) -> bool {
        self.models.get(name).is_some_and(|model| model.is_draining)
    }

    /// Returns how many requests found their model loaded.
    pub(crate) fn hits(&self) -> u64 {
        self.models.values().map(|model| model.usage.hits()).sum()
    }

    /// Returns the loaded models whose memory is counted. `pipelines` has those that need each model.
    pub(crate) fn residents(&self, pipelines: &HashMap<String, Vec<String>>) -> Vec<Resident> {
        let residents = self.models.iter().filter_map(|(name, model)| model.resident(name, pipelines));
        residents.collect()
    }

    /// As [`Self::residents`], with what each has reserved of a card. The server's own workspace there is a part of
    /// what the model has that was loaded when it grew.
    pub(crate) fn residents_on(&self, card: u16, pipelines: &HashMap<String, Vec<String>>) -> Vec<Resident> {
        let residents = self.models.iter().filter_map(|(name, model)| {
            Some(Resident { bytes: model.card_bytes(card), ..model.resident(name, pipelines)? })
        });
        residents.collect()
    }

    /// As [`Self::residents`], for one model.
    pub(crate) fn resident(&self, name: &str, pipelines: &HashMap<String, Vec<String>>) -> Option<Resident> {
        self.models.get(name)?.resident(name, pipelines)
    }
}

impl Model {
    fn resident(&self, name: &str, pipelines: &HashMap<String, Vec<String>>) -> Option<Resident> {
        let footprint = self.footprint?;
        let Footprint { bytes, loaded_at, load_took, .. } = footprint;
        Some(Resident {
            name: name.to_owned(),
            bytes,
            loaded_at,
            load_took,
            last_used: self.usage.last().max(loaded_at),
            uses: self.usage.uses(),
            hold: self.hold(footprint),
            needed_by: pipelines.get(name).cloned().unwrap_or_default(),
        })
    }

    /// Returns the bytes of a card that its ready versions have reserved.
    fn card_bytes(&self, card: u16) -> usize {
        let ready = self.versions.values().filter_map(|state| match state {
            State::Ready { version, .. } => Some(version.servable().card_memory()),
            _ => None,
        });
        ready.flatten().filter(|memory| memory.card == card).map(|memory| memory.bytes as usize).sum()
    }

    /// Returns why it may not be unloaded without a client's request.
    fn hold(&self, footprint: Footprint) -> Option<Hold> {
        if footprint.is_pinned {
            return Some(Hold::Pinned);
        }
        if footprint.is_sent {
            return Some(Hold::Sent);
        }
        // In the table, and in the snapshot that serves.
        let own_references = if self.is_draining { 1 } else { 2 };
        let (mut open_sequences, mut is_busy) = (0, false);
        for state in self.versions.values() {
            match state {
                State::Loading => is_busy = true,
                State::Ready { version, .. } => {
                    // Requests hold the version, and the steps of pipelines what serves it.
                    is_busy |= Arc::strong_count(version) > own_references || version.servable().is_shared();
                    open_sequences += version.servable().open_sequences();
                }
                State::Failed { .. } | State::Unloaded { .. } => {}
            }
        }
        if open_sequences > 0 { Some(Hold::Sequences(open_sequences)) } else { is_busy.then_some(Hold::Busy) }
    }
}
