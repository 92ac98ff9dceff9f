use std::{collections::HashSet, fs};

use paternoster_config::{
    convert,
    unfold::{self, CellPorts},
    yaml,
};
use paternoster_model::TensorSpec;
use paternoster_onnx::{Port, PortDim, Signature, build::BuildError};

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("paternoster-models-{name}-{}", std::process::id()));
        // A leftover of a killed run with the same process id.
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn args(&self, set: Set, only: &[&str]) -> ModelsArgs {
        ModelsArgs {
            out: self.0.clone(),
            set,
            minilm: None,
            only: only.iter().map(|&name| name.to_owned()).collect(),
            all: false,
            quarter: false,
            list: false,
        }
    }

    fn names(&self) -> HashSet<String> {
        let entries = fs::read_dir(&self.0).expect("it was written");
        entries.map(|entry| entry.expect("it can be listed").file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_small_models_of_every_set_are_written_and_can_be_read() {
    for set in [Set::Examples, Set::Replay, Set::Tests] {
        let folder = Folder::new(&format!("set-{set}"));
        let mut args = folder.args(set, &[]);
        args.quarter = true;
        run(&args).expect("the set is written");
        let chosen = choose(&folder.args(set, &[]), set.recipes()).expect("the whole set");
        let expected: HashSet<String> = chosen.iter().map(|recipe| recipe.name.to_owned()).collect();
        assert_eq!(folder.names(), expected, "nothing is missing, nothing is left over");
        for recipe in chosen {
            let version = folder.0.join(recipe.name).join("1");
            let path = version.join("model.onnx");
            match recipe.program {
                Program::Cells(cells) => {
                    assert_eq!(
                        fs::read_dir(version).expect("it is there").count(),
                        cells.len(),
                        "a file for each cell"
                    );
                }
                Program::BuiltIn => assert!(!path.exists()),
                Program::Garbage => assert!(Signature::read(&path).is_err()),
                _ => drop(Signature::read(&path).expect("it is a model")),
            }
        }
    }
}

#[test]
fn names_within_a_set_are_unique() {
    for set in [Set::Examples, Set::Replay, Set::Tests] {
        let names: Vec<&str> = set.recipes().iter().map(|recipe| recipe.name).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    }
}

#[test]
fn models_of_cells_have_a_file_for_each_and_name_them_all() {
    let of_cells = |recipe: &Recipe| matches!(recipe.program, Program::Cells(_));
    let recipes: Vec<Recipe> = Set::Examples.recipes().into_iter().filter(of_cells).collect();
    assert_eq!(recipes.len(), 11);
    for recipe in recipes {
        let (name, text) = recipe.config.file(Width::FULL).expect("nothing completes it from a graph");
        assert_eq!(name, "model.yaml");
        for file in recipe.program.files() {
            assert!(text.contains(&format!("  {file}: {{ program: {file}.onnx")), "{}: {file}", recipe.name);
        }
    }
}

/// Returns the specifications of a task's rows, without the batch.
fn row_specs(ports: &[Port]) -> Vec<TensorSpec> {
    let spec = |port: &Port| {
        let dims: Vec<i64> = port.dims.iter().flatten().skip(1).map(PortDim::size).collect();
        TensorSpec::new(&port.name, port.datatype.expect("it is declared"), &dims)
    };
    ports.iter().map(spec).collect()
}

#[test]
fn configurations_of_cells_fit_their_programs() {
    for recipe in Set::Examples.recipes() {
        let Program::Cells(cells) = recipe.program else { continue };
        let (_, text) = recipe.config.file(Width::QUARTER).expect("it has one");
        let (config, origin) = yaml::parse(recipe.name, text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"));
        let request = unfold::read(&config, &origin).unwrap_or_else(|fault| panic!("{fault}")).expect("it has cells");
        let ports = request.cells.iter().map(|asked| {
            let cell = cells.iter().find(|cell| format!("{}.onnx", cell.name) == asked.program).expect("it is written");
            let model = (cell.make)(Width::QUARTER).expect("sound").to_bytes();
            let Signature { inputs, outputs, .. } = Signature::from_bytes(cell.name, &model).expect("it can be read");
            CellPorts { inputs: row_specs(&inputs), outputs: row_specs(&outputs) }
        });
        let ports: Vec<CellPorts> = ports.collect();
        assert_eq!(ports.len(), cells.len(), "{}: no program is left over", recipe.name);
        let (spec, ..) =
            convert::model(&config, 1, &Default::default(), &origin).unwrap_or_else(|fault| panic!("{fault}"));
        let unfolding = request.resolve(&spec, &ports).unwrap_or_else(|fault| panic!("{}: {fault}", recipe.name));
        assert_eq!(unfolding.outputs.len(), spec.outputs.len());
    }
}

#[test]
fn cells_are_written_at_the_width_that_their_configuration_tells() {
    let folder = Folder::new("cells");
    let mut args = folder.args(Set::Examples, &["lstm"]);
    for (quarter, hidden) in [(true, 256), (false, 1024)] {
        args.quarter = quarter;
        run(&args).expect("it is written");
        let directory = folder.0.join("lstm");
        assert!(!directory.join("1/model.onnx").exists(), "there is no graph of the whole");
        let step = Signature::read(&directory.join("1/step.onnx")).expect("it is a model");
        let dims = step.outputs[0].dims.as_ref().expect("they are declared");
        assert_eq!(dims[1].size(), hidden);
        let text = fs::read_to_string(directory.join("model.yaml")).expect("it is there");
        assert!(text.contains(&format!("dims: [{hidden}]")), "{text}");
    }
    fs::remove_file(folder.0.join("lstm/1/step.onnx")).expect("it is there");
    let recipe = Set::Examples.recipes().into_iter().find(|recipe| recipe.name == "lstm").expect("it is an example");
    assert!(matches!(write_one(&folder, &recipe), Outcome::Written { .. }), "a missing cell is written again");
}

fn write_one(folder: &Folder, recipe: &Recipe) -> Outcome {
    write(&folder.args(Set::Examples, &[]), recipe).expect("it is written")
}

#[test]
fn what_is_unchanged_is_kept_and_what_changed_is_replaced() {
    let folder = Folder::new("kept");
    let mut recipe = Set::Examples.recipes().swap_remove(1);
    assert!(matches!(write_one(&folder, &recipe), Outcome::Written { .. }));
    assert_eq!(write_one(&folder, &recipe), Outcome::Kept);

    let directory = folder.0.join(recipe.name);
    fs::remove_file(directory.join("1/model.onnx")).expect("it is there");
    assert!(matches!(write_one(&folder, &recipe), Outcome::Written { .. }), "a missing file is written again");

    fs::create_dir(directory.join("2")).expect("a version of the user's own");
    recipe.config = recipe::Config::Yaml("max_batch_size: 4\n");
    assert!(matches!(write_one(&folder, &recipe), Outcome::Written { .. }));
    assert!(!directory.join("config.pbtxt").exists(), "two configurations would contradict each other");
    assert_eq!(fs::read_to_string(directory.join("model.yaml")).expect("it is there"), "max_batch_size: 4\n");
    assert!(directory.join("2").is_dir(), "what the user added stays");
    assert_eq!(folder.names(), HashSet::from([recipe.name.to_owned()]), "no stage is left over");
}

#[test]
fn a_directory_of_somebody_else_is_left_alone() {
    let folder = Folder::new("foreign");
    let recipe = Set::Examples.recipes().swap_remove(0);
    let theirs = folder.0.join(recipe.name).join("config.pbtxt");
    fs::create_dir_all(folder.0.join(recipe.name)).expect("a temporary folder");
    fs::write(&theirs, "max_batch_size: 1").expect("a file");
    assert_eq!(write_one(&folder, &recipe), Outcome::Foreign);
    assert_eq!(fs::read_to_string(theirs).expect("it is still there"), "max_batch_size: 1");
}

#[test]
fn a_failure_leaves_nothing_behind() {
    let folder = Folder::new("failure");
    let mut recipe = Set::Examples.recipes().swap_remove(0);
    recipe.program = Program::Graph(|| Err(BuildError::NoOutput { graph: "g".to_owned() }.into()));
    let refusal = write(&folder.args(Set::Examples, &[]), &recipe).expect_err("the graph is bad").to_string();
    assert_eq!(refusal, "model 'identity': graph 'g' has no output");
    assert!(folder.names().is_empty(), "{:?}", folder.names());
}

#[test]
fn choices_that_cannot_be_met_are_refused() {
    let folder = Folder::new("refused");
    let refusal = |args: &ModelsArgs| run(args).expect_err("refused").to_string();
    let unknown = refusal(&folder.args(Set::Replay, &["addsub", "resnet"]));
    assert!(unknown.starts_with("there is no model 'resnet' in the set 'replay'; it has identity_onnx, "), "{unknown}");
    let unweighted = refusal(&folder.args(Set::Examples, &["minilm"]));
    assert_eq!(unweighted, "the model 'minilm' needs its weights: name their directory with --minilm");
    let mut args = folder.args(Set::Examples, &["minilm"]);
    args.minilm = Some("nowhere".into());
    assert!(refusal(&args).starts_with("there is no model.safetensors in 'nowhere' ("), "{}", refusal(&args));
    assert!(!folder.0.exists(), "nothing was begun");
}

#[test]
fn networks_are_written_only_on_request() {
    let folder = Folder::new("large");
    let mut args = folder.args(Set::Examples, &["mobilenet"]);
    args.quarter = true;
    run(&args).expect("it is written");
    assert_eq!(folder.names(), HashSet::from(["mobilenet".to_owned()]));
    let small = choose(&folder.args(Set::Examples, &[]), Set::Examples.recipes()).expect("the small ones");
    assert!(small.iter().all(|recipe| !recipe.large));
    let recipes = Set::Examples.recipes();
    let mobilenet = recipes.iter().find(|recipe| recipe.name == "mobilenet").expect("it is an example");
    let stamp = |width| mobilenet.stamp(width, None);
    assert_ne!(stamp(Width::QUARTER), stamp(Width::FULL), "another width is another content");
}
