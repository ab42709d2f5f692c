//! Generates the protobuf types and the service of `dartspec/v1/ngram.proto`, without a system `protoc`.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use prost::Message;

const PROTO_ROOT: &str = "../../proto";
const PROTOS: [&str; 2] = ["dartspec/v1/ngram.proto", "dartspec/v1/common.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    for proto in PROTOS {
        println!("cargo::rerun-if-changed={PROTO_ROOT}/{proto}");
    }
    let descriptors = protox::compile(PROTOS, [PROTO_ROOT])?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("dartspec_v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(false)
        .bytes(".dartspec.v1.Proposals")
        .compile_fds(descriptors)?;
    Ok(())
}
