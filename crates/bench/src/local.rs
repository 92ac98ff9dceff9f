//! Models in this process, loaded once for each policy that is compared.

use std::{
    ffi::OsStr,
    fmt, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use paternoster_config::{
    ConfigError, Settings, json,
    knobs::Whole,
    model::{PolicyName, Stages},
    pbtxt,
    policy_text::PolicyText,
    yaml,
};
use paternoster_engine::{Engines, LibraryError};
use paternoster_executor::{Pool, PoolOptions};
use paternoster_profile::Store;
use paternoster_repository::{ControlError, Options, Overrides, PoolLoader, Repository, ResolveError, StartError};
use tempfile::TempDir;

use crate::Target;

const PBTXT: &str = "config.pbtxt";
const YAML: &str = "model.yaml";

/// A batching configuration that replaces the one of the model.
///
/// Written as the mapping below `batching` in `model.yaml`, without braces. The first key is the policy: `window: {
/// max_queue_delay_us: 500 }, queueing: { bucket_width: 10 }`, or just `diversity`. `max_batch_size` and `stages` are
/// allowed as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    name: String,
    settings: Settings,
    sets_stages: bool,
}

/// An invalid policy text.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    /// The text is not a mapping that starts with a policy.
    #[error(
        "'{text}' is not a policy: expected a name with its knobs as below 'batching' in model.yaml, such as \
         'window: {{ max_queue_delay_us: 500 }}'"
    )]
    Form {
        /// The text as given.
        text: String,
    },
    /// The policy or a knob is unknown or invalid.
    #[error("'{text}': {source}")]
    Config {
        /// The text as given.
        text: String,
        /// The configuration error.
        source: Box<ConfigError>,
    },
}

impl Variant {
    /// Parses a policy.
    ///
    /// # Errors
    /// If a key is unknown or a value is invalid.
    pub fn parse(text: &str) -> Result<Self, VariantError> {
        let wrong = || VariantError::Form { text: text.to_owned() };
        let policy = PolicyText::read(text).ok_or_else(wrong)?;
        let sets_stages = policy.model.contains_key("stages");
        let written = serde_yaml::to_string(&policy.document()).map_err(|_| wrong())?;
        let read = yaml::parse("policy", written.as_bytes());
        let refused = |source| VariantError::Config { text: text.to_owned(), source: Box::new(source) };
        let (settings, _) = read.map_err(refused)?;
        Ok(Self { name: text.trim().to_owned(), settings, sets_stages })
    }

    /// Sets the number of stages, unless the text sets `stages` itself.
    #[must_use]
    pub fn in_stages(mut self, stages: u16) -> Self {
        if !self.sets_stages {
            self.sets_stages = true;
            self.settings.own.stages = Some(Stages::Count(Whole(stages)));
            self.name = format!("{}, stages: {stages}", self.name);
        }
        self
    }

    /// Returns the text as it was written.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a model's settings with their batching replaced by this variant.
    fn apply(&self, base: &Settings) -> Settings {
        let mut settings = base.clone();
        let Settings { config, own } = self.settings.clone();
        settings.own.batching = own.batching;
        if self.sets_stages {
            settings.own.stages = own.stages;
        }
        settings.config.scheduling_choice = config.scheduling_choice;
        if config.max_batch_size > 0 {
            settings.config.max_batch_size = config.max_batch_size;
        }
        settings
    }

    /// Returns the policy.
    pub fn policy(&self) -> Option<&PolicyName> {
        self.settings.policy()
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

/// Configuration of the model, without its name.
struct Base {
    settings: Settings,
    /// Content of `model.yaml`, if the configuration is such a file.
    written: Option<String>,
}

/// A model directory from which variants are loaded onto one pool.
pub struct Local {
    model: String,
    directory: PathBuf,
    base: Base,
    place: TempDir,
    repository: Arc<Repository>,
    loaded: AtomicUsize,
}

/// Reasons why a model cannot be measured in this process.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The repository has no such model.
    #[error("there is no model '{model}' in '{}'{}", repository.display(), listed(models))]
    NoModel {
        /// Name of the model.
        model: String,
        /// Directory of the repository.
        repository: PathBuf,
        /// Names of the models in the repository.
        models: Vec<String>,
    },
    /// ONNX Runtime is missing.
    #[error("{0}")]
    Runtime(#[from] LibraryError),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file or thread could not be created.
    #[error("cannot prepare '{}': {source}", path.display())]
    Io {
        /// Path that was being prepared.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The repository could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The model could not be loaded with this policy.
    #[error("the model does not load with '{variant}': {source}")]
    Load {
        /// The policy.
        variant: String,
        /// The reason.
        source: ControlError,
    },
    /// The model is missing although it was loaded.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

fn listed(models: &[String]) -> String {
    if models.is_empty() { String::new() } else { format!("; it has '{}'", models.join("', '")) }
}

impl Local {
    /// Finds a model in a repository, reads its configuration, and starts a pool. Variants with `auto` are loaded as
    /// the model's profile in `profiles` advises, if there is one.
    ///
    /// # Errors
    /// If there is no such model, or its configuration is invalid.
    pub async fn open(
        repository: &Path,
        model: &str,
        engines: impl Into<Engines>,
        pool: &PoolOptions,
        profiles: Option<Store>,
    ) -> Result<Self, LocalError> {
        let directory = repository.join(model);
        if !directory.is_dir() || model.is_empty() {
            let models = names(repository);
            return Err(LocalError::NoModel { model: model.to_owned(), repository: repository.to_owned(), models });
        }
        let base = base(&directory)?;
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| LocalError::Io { path, source }
        };
        let place = tempfile::tempdir().map_err(io(&std::env::temp_dir()))?;
        let has_cards = !pool.cards.ordinals.is_empty();
        let pool = Pool::start(pool).map_err(io(Path::new("the pool")))?;
        let options = Options { has_cards, ..Options::on_request(place.path().to_owned()) };
        let loader = PoolLoader::new(pool, engines);
        let loader = profiles.into_iter().fold(loader, PoolLoader::with_profiles);
        let repository = Repository::start(options, Arc::new(loader)).await?;
        Ok(Self { model: model.to_owned(), directory, base, place, repository, loaded: AtomicUsize::new(0) })
    }

    /// Returns the name of the model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Loads the model with this variant, or as it is configured.
    ///
    /// # Errors
    /// If the model cannot be loaded.
    pub async fn load(&self, variant: Option<&Variant>) -> Result<LoadedVariant, LocalError> {
        let name = format!("{}-{}", self.model, self.loaded.fetch_add(1, Ordering::Relaxed));
        let own = self.place.path().join(&name);
        let io = |source| LocalError::Io { path: own.clone(), source };
        self.link(&own).map_err(io)?;
        let config = match (variant, &self.base.written) {
            // Keeps `model.yaml` as it is, because other forms cannot omit the policy, and only a model without an
            // explicit policy may be configured by its profile.
            (None, Some(yaml)) => {
                fs::write(own.join(YAML), yaml).map_err(io)?;
                None
            }
            (None, None) => Some(self.base.settings.clone()),
            (Some(variant), _) => Some(variant.apply(&self.base.settings)),
        };
        let config_json =
            config.map(|settings| json::write(&settings.shown())).transpose()?.map(|config| config.to_string());
        let overrides = Overrides { config_json, ..Overrides::default() };
        let load = self.repository.load(&name, overrides).await;
        let variant = variant.map_or_else(|| "the model's own configuration".to_owned(), ToString::to_string);
        load.map_err(|source| LocalError::Load { variant, source })?;
        let target = Target::local(self.repository.resolve(&name, "")?.servable().clone());
        Ok(LoadedVariant { repository: Arc::clone(&self.repository), name, target })
    }

    /// Creates a directory with links to the model's files, except its configuration.
    fn link(&self, own: &Path) -> io::Result<()> {
        fs::create_dir(own)?;
        for entry in fs::read_dir(fs::canonicalize(&self.directory)?)? {
            let entry = entry?;
            if entry.file_name() != OsStr::new(PBTXT) && entry.file_name() != OsStr::new(YAML) {
                symlink(entry.path(), own.join(entry.file_name()))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Local").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// A loaded variant.
#[derive(Debug)]
pub struct LoadedVariant {
    repository: Arc<Repository>,
    name: String,
    /// Target of the load.
    pub target: Target,
}

impl LoadedVariant {
    /// Unloads the variant.
    ///
    /// # Errors
    /// Never, because this repository allows clients to load and unload models.
    pub async fn unload(self) -> Result<(), ControlError> {
        self.repository.unload(&self.name, false).await
    }
}

/// Reads the configuration in the directory; empty if there is none. Removes its name, because the model is loaded
/// under other names.
fn base(directory: &Path) -> Result<Base, LocalError> {
    let read = |name: &str| {
        let path = directory.join(name);
        fs::read(&path).map(|bytes| (path.display().to_string(), bytes)).ok()
    };
    let (mut settings, written) = match (read(PBTXT), read(YAML)) {
        (Some((file, bytes)), _) => (pbtxt::parse(&file, &bytes)?.0, None),
        (None, Some((file, bytes))) => (yaml::parse(&file, &bytes)?.0, unnamed(&bytes)),
        (None, None) => (Settings::default(), None),
    };
    settings.config.name.clear();
    Ok(Base { settings, written })
}

/// Returns a valid `model.yaml` without its `name`; `None` if it is invalid.
fn unnamed(bytes: &[u8]) -> Option<String> {
    let mut document: serde_yaml::Mapping = serde_yaml::from_slice::<Option<_>>(bytes).ok()?.unwrap_or_default();
    document.remove("name");
    serde_yaml::to_string(&document).ok()
}

fn names(repository: &Path) -> Vec<String> {
    let entries = fs::read_dir(repository).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = directories
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use paternoster_batching::PolicyKind;
    use paternoster_config::{pb, settings::Pad, values::Parsed};

    use super::*;

    fn knob(settings: &Settings, key: &str) -> Option<String> {
        settings.shown().parameters.get(key).map(|parameter| parameter.string_value.clone())
    }

    #[test]
    fn a_policy_is_its_name_and_its_knobs() {
        let variant =
            Variant::parse("window: { max_queue_delay_us: 500 }, queueing: { bucket_width: 10 }, max_batch_size: 4");
        let variant = variant.expect("it is a policy");
        assert_eq!(variant.policy(), Some(&PolicyName::Of(PolicyKind::Window)));
        assert_eq!(variant.settings.config.max_batch_size, 4);
        let Some(pb::model_config::SchedulingChoice::DynamicBatching(batching)) =
            &variant.settings.config.scheduling_choice
        else {
            panic!("it batches");
        };
        assert_eq!(batching.max_queue_delay_microseconds, 500);
        assert_eq!(Variant::parse("diversity").expect("a name").policy(), Some(&PolicyName::Of(PolicyKind::Diversity)));
        assert_eq!(Variant::parse("serial").expect("a name").policy(), Some(&PolicyName::Of(PolicyKind::Serial)));
        let whole = Variant::parse("policy: lazy, latency_objective_ms: 50").expect("a mapping");
        assert_eq!(whole.policy(), Some(&PolicyName::Of(PolicyKind::Lazy)));
        assert_eq!(knob(&whole.settings, "batching.latency_objective_ms").as_deref(), Some("50"));
    }

    #[test]
    fn what_is_no_policy_is_refused_with_what_was_expected() {
        let refusal = |text: &str| Variant::parse(text).expect_err("it is none").to_string();
        for text in ["", "{", "[1]", "3: {}"] {
            assert!(refusal(text).contains("expected a name with its knobs"), "{}", refusal(text));
        }
        assert!(refusal("windw: { }").contains("windw"), "{}", refusal("windw: { }"));
        let unknown = refusal("window: { max_delay: 3 }");
        assert!(unknown.contains("unknown key 'max_delay'"), "{unknown}");
    }

    #[test]
    fn a_policy_replaces_the_models_own_and_nothing_else() {
        let base = "lazy: { predictor: paper }, latency_objective_ms: 20, stages: 3, max_batch_size: 16";
        let mut base = Variant::parse(base).expect("it is a policy").settings;
        base.own.pad.insert("x".to_owned(), Parsed(Pad { symbols: vec!["n".to_owned()], value: 0.0 }));
        let applied = Variant::parse("window: { max_queue_delay_us: 7 }").expect("a policy").apply(&base);
        assert_eq!(applied.config.max_batch_size, 16);
        assert_eq!(knob(&applied, "batching.policy").as_deref(), Some("window"));
        assert_eq!(knob(&applied, "batching.latency_objective_ms"), None);
        assert_eq!(knob(&applied, "batching.lazy.predictor"), None);
        assert_eq!(knob(&applied, "stages").as_deref(), Some("3"), "the policy says nothing of stages");
        assert_eq!(knob(&applied, "pad.x").as_deref(), Some("n=0"));
        let cut = Variant::parse("window").expect("a policy").in_stages(2);
        assert_eq!(knob(&cut.apply(&base), "stages").as_deref(), Some("2"));
        let own = Variant::parse("window, stages: 5").expect("a policy").in_stages(2);
        assert_eq!(knob(&own.apply(&base), "stages").as_deref(), Some("5"), "its own number counts");
    }
}
