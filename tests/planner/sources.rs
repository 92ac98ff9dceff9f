//! The committed sources of plans' kernels, which `make kernels` compiles for cards without a GPU.

use std::{env, fs, path::PathBuf};

use paternoster_engine::Precision;
use paternoster_onnx::zoo::{Width, cells};

use crate::{convolutions, networks::network, operators, resampling, rig::Case};

/// Environment variable that makes the test write the files instead of comparing them.
const WRITE: &str = "WRITE_PLANS";

#[test]
fn sources_are_the_committed_ones() {
    let project = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    if !project.join("Cargo.toml").exists() {
        return eprintln!("skipped: the project's files are not on this machine");
    }
    let lstm = || network(cells::lstm::step(Width::QUARTER), &[], 2_000);
    let half = [
        ("lstm_step_bf16", lstm().plan_in(Precision::Bf16)),
        ("lookups_fp16", operators::lookups_of().plan_in(Precision::Fp16)),
    ];
    let cases: [(&str, Case); 10] = [
        ("lstm_step", lstm()),
        (
            "transformer_decoder",
            network(cells::transformer::decoder(Width::QUARTER), &[("past", 5), ("memory", 7)], 4_000),
        ),
        ("numbers", operators::numbers()),
        ("whole_numbers", operators::whole_numbers()),
        ("reductions", operators::reductions_of()),
        ("lookups", operators::lookups_of()),
        ("depthwise", convolutions::groups_of()),
        ("pools", convolutions::pools_of()),
        ("pads", resampling::pads_of()),
        ("sizes", resampling::sizes_of()),
    ];
    let folder = project.join("tests/data/plans");
    let plans = cases.into_iter().map(|(name, case)| (name, case.plan())).chain(half);
    for (name, plan) in plans {
        let path = folder.join(format!("{name}.cu"));
        if env::var_os(WRITE).is_some() {
            fs::create_dir_all(&folder).expect("the folder can be made");
            fs::write(&path, plan.source()).expect("the file can be written");
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == plan.source(),
            "{name}.cu is not what the plan has: run once with {WRITE}=1 and look at it"
        );
    }
}
