//! Compiles `grpc_service.proto` with protox, so that building needs no protoc. The messages of the model configuration
//! are those of the crate that reads it. The descriptor set is kept for server reflection.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    const PROTO: &str = "../../proto";
    /// Where the generated messages of `model_config.proto` live.
    const CONFIG_MODULE: &str = "::paternoster_config::pb";

    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={PROTO}");
    let config = protox::compile(["model_config.proto"], [PROTO])?;
    let shared = config.file.iter().flat_map(|file| {
        file.message_type.iter().map(|message| message.name()).chain(file.enum_type.iter().map(|item| item.name()))
    });

    // The set keeps its imports, so that reflection can describe every message.
    let mut compiler = protox::Compiler::new([PROTO])?;
    compiler.include_imports(true).open_file("grpc_service.proto")?;
    let service = compiler.file_descriptor_set();
    fs::write(out.join("grpc_service.bin"), service.encode_to_vec())?;
    let mut builder = tonic_prost_build::configure()
        .out_dir(&out)
        .build_client(true)
        // The front end generates a server that leaves large messages encoded; this one serves benchmarks and tests, a
        // few methods at a time.
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
