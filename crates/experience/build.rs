//! Compiles the schema with a compiler written in Rust: `protoc` is not needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SCHEMA: &str = "proto/experience.proto";
    println!("cargo::rerun-if-changed={SCHEMA}");
    let schema = protox::compile([SCHEMA], ["proto"])?;
    prost_build::Config::new()
        // Payloads are slices of the buffer they arrived in, and maps have an order.
        .bytes(["."])
        .btree_map(["."])
        .compile_fds(schema)?;
    Ok(())
}
