//! Compiles `proto/*.proto` with protox, so that building needs no protoc; names the commit that is built.
//!
//! Two sets come out: the model configuration (held by `repository`) and the inference service (held by `wire`, which
//! refers to the configuration's messages by `extern_path`). Their descriptor sets are kept: the text format of
//! `config.pbtxt` and server reflection read them at run time.

use std::{env, error::Error, fs, path::PathBuf, process::Command};

use protox::prost::Message;

/// Where the generated messages of `model_config.proto` live in the crate.
const CONFIG_MODULE: &str = "::paternoster_config::pb";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=proto");
    name_commit();

    let config = protox::compile(["model_config.proto"], ["proto"])?;
    let types = config.file.iter().flat_map(|file| {
        file.message_type.iter().map(|message| message.name()).chain(file.enum_type.iter().map(|item| item.name()))
    });
    let shared: Vec<String> = types.map(str::to_owned).collect();

    // The set keeps its imports, so that reflection can describe every message.
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_file("grpc_service.proto")?;
    let service = compiler.file_descriptor_set();
    let descriptor = out.join("grpc_service.bin");
    fs::write(&descriptor, service.encode_to_vec())?;
    let service_out = out.join("service");
    fs::create_dir_all(&service_out)?;
    let mut builder = tonic_prost_build::configure()
        .out_dir(&service_out)
        .build_client(true)
        // The server runs on its own dispatch; the generated service serves benchmarks and tests, a few methods at a
        // time.
        .generate_default_stubs(true)
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .bytes(".inference.InferTensorContents.bytes_contents");
    for message in shared {
        builder = builder.extern_path(format!(".inference.{message}"), format!("{CONFIG_MODULE}::{message}"));
    }
    builder.compile_fds(service)?;
    Ok(())
}

/// Lets `paternoster --version` name the commit that is built. A build of sources without a history gets it in
/// `PATERNOSTER_COMMIT`, or has none. Only release builds ask git, so that a commit does not make others compile again.
fn name_commit() {
    const VARIABLE: &str = "PATERNOSTER_COMMIT";

    println!("cargo:rerun-if-env-changed={VARIABLE}");
    if env::var_os(VARIABLE).is_some() || env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    let here = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    // A copy of the sources within another repository has no history of its own.
    if git(&["rev-parse", "--show-toplevel"]).as_deref() != Some(&here) {
        return;
    }
    let (Some(commit), Some(log)) = (git(&["rev-parse", "HEAD"]), git(&["rev-parse", "--git-path", "logs/HEAD"]))
    else {
        return;
    };
    // What git writes whenever HEAD moves.
    if fs::exists(&log).unwrap_or(false) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rustc-env={VARIABLE}={commit}");
}

/// What git prints, where it is installed and has an answer.
fn git(words: &[&str]) -> Option<String> {
    let done = Command::new("git").args(words).output().ok()?;
    let printed = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| printed.trim_end().to_owned())
}
