//! Compiles `model_config.proto` with protox, so that building needs no protoc. Its descriptor set is kept: the text
//! format of `config.pbtxt` reads it at run time.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    const PROTO: &str = "../../proto";

    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={PROTO}");
    let config = protox::compile(["model_config.proto"], [PROTO])?;
    fs::write(out.join("model_config.bin"), config.encode_to_vec())?;
    prost_build::Config::new().out_dir(&out).btree_map(["."]).compile_fds(config)?;
    Ok(())
}
