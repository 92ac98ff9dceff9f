//! Compiles `proto/onnx.proto` with protox, so that building needs no protoc.

use std::error::Error;

use prost_build::Config;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut options = Config::new();
    options.bytes([".onnx.TensorProto.raw_data"]);
    // Most attributes are a number: unboxed, each would take the room of a graph and three tensors.
    for rare in ["t", "g", "tp", "sparse_tensor"] {
        options.boxed(format!(".onnx.AttributeProto.{rare}"));
    }
    options.compile_fds(protox::compile(["onnx.proto"], ["proto"])?)?;
    Ok(())
}
