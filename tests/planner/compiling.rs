//! Kernels can be compiled in advance, on any thread.

use std::thread;

use paternoster_device::cuda::{Compiler, KERNELS, KernelElement};
use paternoster_testing::{fake_control::traced, fake_cuda::with_fake_cuda};

use crate::{
    operators::Draft,
    rig::{Case, card_with},
};

/// Returns a graph that needs a generated kernel and a written one.
fn softmax() -> Case {
    let mut draft = Draft::new();
    let x = draft.floats("x", &[5]);
    let shares = draft.graph.op("Softmax", &[&x]).attr("axis", -1).value();
    let squared = draft.graph.op("Mul", &[&shares, &shares]).value();
    draft.give(&squared, &[5]);
    draft.case()
}

fn compiled(calls: &str) -> usize {
    calls.lines().filter(|line| line.contains("nvrtcCompileProgram")).count()
}

#[test]
fn what_was_compiled_ahead_is_not_compiled_again() {
    with_fake_cuda(&[], || {
        let folder = tempfile::tempdir().expect("a folder");
        let mut card = card_with(&Compiler::new(Some(folder.path().to_owned())));
        let plan = softmax().plan();
        let (own, compiler) = (plan.clone(), card.compiler().clone());
        let ahead = traced(|| {
            let compiling = thread::spawn(move || own.compile(&compiler));
            compiling.join().expect("it does not panic").expect("it compiles");
        });
        assert_eq!(compiled(&ahead), 2);
        let after = traced(|| drop(plan.load(&mut card).expect("there is room")));
        assert_eq!(compiled(&after), 0, "{after}");
    });
}

#[test]
fn what_was_compiled_for_a_capability_is_not_compiled_for_a_card_that_has_it() {
    with_fake_cuda(&[], || {
        let capability = card_with(&Compiler::default()).capability();
        let folder = tempfile::tempdir().expect("a folder");
        let compiler = Compiler::new(Some(folder.path().to_owned()));
        let plan = softmax().plan();
        let ahead = compiler.for_architecture(capability.0, capability.1);
        for source in [KERNELS.parameters, KERNELS.signal] {
            ahead.compile(source, KernelElement::F32).expect("it compiles");
        }
        plan.compile(&ahead).expect("it compiles");
        let after = traced(|| {
            let mut card = card_with(&compiler);
            drop(plan.load(&mut card).expect("there is room"));
        });
        assert_eq!(compiled(&after), 0, "{after}");
        let other = compiler.for_architecture(capability.0 + 1, capability.1);
        assert_eq!(
            compiled(&traced(|| plan.compile(&other).expect("it compiles"))),
            2,
            "other cards have other binaries"
        );
    });
}
