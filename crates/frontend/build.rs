//! Generates tonic's server of `inference.GRPCInferenceService` over the messages of the crate `paternoster-wire`. The
//! requests that may be large reach their methods undecoded, and their replies are encoded before tonic sees them.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const PROTO: &str = "../../proto";
    /// Requests that carry tensors or files.
    const LARGE: [&str; 2] = ["ModelInferRequest", "RepositoryModelLoadRequest"];
    /// Replies that carry tensors.
    const ENCODED: [&str; 2] = ["ModelInferResponse", "ModelStreamInferResponse"];

    println!("cargo:rerun-if-changed={PROTO}");
    let mut builder = tonic_prost_build::configure()
        .build_client(false)
        .codec_path("crate::grpc::codec::MessageCodec")
        .extern_path(".inference", "::paternoster_wire::pb");
    for name in LARGE {
        let undecoded = format!("crate::grpc::codec::Undecoded::<::paternoster_wire::pb::{name}>");
        builder = builder.extern_path(format!(".inference.{name}"), undecoded);
    }
    for name in ENCODED {
        let encoded = format!("crate::grpc::codec::Encoded::<::paternoster_wire::pb::{name}>");
        builder = builder.extern_path(format!(".inference.{name}"), encoded);
    }
    builder.compile_fds(protox::compile(["grpc_service.proto"], [PROTO])?)?;
    Ok(())
}
