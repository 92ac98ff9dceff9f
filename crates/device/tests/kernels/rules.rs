//! Errors that the host prelude detects: kernels that break the rules of the device, and launches that do not fit. Also
//! checks the table of kernels and the documentation.

use std::fs;

use crate::{
    array::{Array, Kind},
    library::{
        Arg::{self, Int},
        Library, folder, sources,
    },
};

/// Kernels that would compute wrong results on the device at times, each with its error.
const BROKEN: [(&str, &str); 6] = [
    (
        "SHARED(int, word, 64); EACH { word[TID] = TID; } EACH { out[TID] = word[63 - TID]; }",
        "broken: SYNC is missing between a write and a read",
    ),
    (
        "SHARED(int, word, 64); EACH { word[TID] = 1; } SYNC; EACH { out[TID] = word[TID]; } \
         EACH { word[63 - TID] = 2; }",
        "broken: SYNC is missing between a read and a write",
    ),
    (
        "SHARED(int, word, 64); EACH { word[TID / 2] = TID; } EACH { out[TID] = 0; }",
        "broken: SYNC is missing between two writes",
    ),
    (
        "SHARED(int, word, 64); EACH { if (TID < 63) word[TID] = 1; } SYNC; EACH { out[TID] = word[63]; }",
        "broken: shared memory is read before it is written",
    ),
    (
        "SHARED(int, word, 64); EACH { word[TID + 1] = 1; } EACH { out[TID] = 0; }",
        "broken: an index is beyond shared memory",
    ),
    ("Reg<int> value; EACH { value() = 1; } out[0] = value();", "broken: a Reg is used outside of EACH"),
];

fn compile(source: &str) -> Result<Library, String> {
    let file = tempfile::Builder::new().suffix(".cu").tempfile().expect("a scratch file");
    fs::write(file.path(), source).expect("a scratch file takes a few lines");
    Library::compile(Kind::F32, &[file.path().to_path_buf()])
}

fn launch(body: &str) -> Result<Vec<f64>, String> {
    let library = compile(&format!("KERNEL(broken, 64, int* out) {{ {body} }}")).expect("it is C++");
    let out = Array::untouched(Kind::I32, 64);
    library.launch("broken", [1, 1], 64, &[Arg::Array(&out)]).map(|()| out.values())
}

#[test]
fn a_kernel_that_breaks_a_rule_is_found() {
    for (body, complaint) in BROKEN {
        assert_eq!(launch(body), Err(complaint.to_owned()), "of {body}");
    }
}

#[test]
fn a_kernel_that_keeps_the_rules_runs() {
    let reversed = launch("SHARED(int, word, 64); EACH { word[TID] = TID; } SYNC; EACH { out[TID] = word[63 - TID]; }");
    assert_eq!(reversed, Ok((0..64).rev().map(f64::from).collect()));
}

#[test]
fn a_registers_first_value_is_nan_and_not_zero() {
    let library = compile("KERNEL(unset, 32, float* out) { Reg<float> value; EACH { out[TID] = value(); } }");
    let out = Array::untouched(Kind::F32, 32);
    library.expect("it is C++").launch("unset", [1, 1], 32, &[Arg::Array(&out)]).expect("it breaks no rule");
    assert!(out.values().iter().all(|value| value.is_nan()));
}

#[test]
fn sums_are_taken_in_the_devices_order() {
    let library = compile(
        "KERNEL(sum, 1024, const float* x, float* out) {
             Reg<float> value;
             EACH { value() = x[TID]; }
             float sum = BLOCK_SUM(value);
             EACH { if (TID == 0) *out = sum; }
         }",
    )
    .expect("it is C++");
    let x = crate::numbers::uniform(1, 96, 1e4);
    let out = Array::untouched(Kind::F32, 1);
    library
        .launch("sum", [1, 1], 96, &[Arg::Array(&Array::new(Kind::F32, x.clone())), Arg::Array(&out)])
        .expect("runs");
    // Within a warp, lanes are added pairwise as a butterfly; then the warps are added in order.
    let warp = |lanes: &[f64]| {
        let mut lanes: Vec<f32> = lanes.iter().map(|&lane| lane as f32).collect();
        while lanes.len() > 1 {
            let half = lanes.split_off(lanes.len() / 2);
            lanes.iter_mut().zip(half).for_each(|(low, high)| *low += high);
        }
        lanes[0]
    };
    let sum = x.chunks(32).map(warp).reduce(|sum, warp| sum + warp).expect("three warps");
    assert_eq!(out.values(), [f64::from(sum)]);
}

#[test]
fn a_launch_that_does_not_fit_is_refused_with_its_reason() {
    let library = Library::of(Kind::F32);
    let words = [(); 3].map(|()| Array::zeros(Kind::I64, 1));
    let arguments = words.each_ref().map(Arg::Array);
    assert_eq!(library.launch("singal", [1, 1], 32, &[]), Err("there is no kernel 'singal'".into()));
    for threads in [0, 31, 64] {
        let refused = library.launch("signal", [1, 1], threads, &arguments).expect_err("the block does not fit");
        let rule = "signal: a block has a multiple of 32 threads, 32 at most, along x alone";
        assert_eq!(refused, format!("{rule}; got {threads} x 1 x 1"));
    }
}

/// Returns the names after `KERNEL(` in the kernel files.
fn declared() -> Vec<String> {
    let mut names = Vec::new();
    for file in sources() {
        let text = fs::read_to_string(&file).expect("a kernel file is text");
        for line in text.lines() {
            if let Some((name, _)) = line.strip_prefix("KERNEL(").and_then(|rest| rest.split_once(',')) {
                names.push(name.to_owned());
            }
        }
    }
    names.sort();
    names
}

#[test]
fn each_kernel_is_in_the_table_once_and_described_in_the_readme() {
    let declared = declared();
    assert!(declared.contains(&"attention_64".into()) && declared.contains(&"gather_rows".into()), "{declared:?}");
    for element in Kind::ELEMENTS {
        let kernels = &Library::of(element).kernels;
        assert!(kernels.iter().all(|kernel| [32, 128, 256, 512, 1024].contains(&kernel.most_threads)), "{kernels:?}");
        let mut table: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
        table.sort();
        assert_eq!(table, declared);
    }
    let readme = fs::read_to_string(folder().join("README.md")).expect("the kernels have a README");
    for name in declared {
        assert!(readme.contains(&format!("`{name}")), "kernels/README.md says nothing of {name}");
    }
}

#[test]
fn kernels_include_nothing() {
    for file in sources() {
        let text = fs::read_to_string(&file).expect("a kernel file is text");
        assert!(!text.contains("#include"), "{} includes a file", file.display());
    }
}

#[test]
fn a_mistake_in_a_kernel_is_the_compilers_error() {
    let error = compile("KERNEL(wrong, 32, int* out) { EACH { out[TID] = nothing; } }").err();
    assert!(error.is_some_and(|error| error.contains("nothing")), "the compiler names what is not there");
}

#[test]
fn padding_that_is_all_of_a_launch_is_no_work() {
    let library = Library::of(Kind::F32);
    let out = Array::untouched(Kind::F32, 4);
    let arguments = [
        Arg::Array(&crate::numbers::live(0)),
        Int(2),
        Int(2),
        Arg::Array(&Array::zeros(Kind::F32, 4)),
        Arg::Array(&out),
    ];
    library.launch("softmax", [2, 1], 32, &arguments).expect("the launch keeps the rules");
    assert_eq!(out.values(), [crate::array::UNTOUCHED; 4]);
}
