//! Generates the protobuf types that searching and relaying need, and the services' traits, without a system `protoc`.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

use prost::Message;

const PROTO_ROOT: &str = "../../proto";
/// What the server says of itself.
const SERVED: [&str; 2] = ["dartspec/v1/ngram.proto", "dartspec/v1/common.proto"];
const PROTOS: [&str; 3] = [SERVED[0], SERVED[1], "dartspec/v1/verifier.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    for proto in PROTOS {
        println!("cargo::rerun-if-changed={PROTO_ROOT}/{proto}");
    }
    let served = protox::compile(SERVED, [PROTO_ROOT])?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("dartspec_v1.bin"), served.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(false)
        .bytes(".dartspec.v1.Proposals")
        .compile_fds(protox::compile(PROTOS, [PROTO_ROOT])?)?;
    Ok(())
}
