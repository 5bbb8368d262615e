//! Compiles the schema with a compiler written in Rust: nobody needs to install `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SCHEMA: &str = "proto/worker.proto";
    const EXPERIENCE: &str = "proto/experience.proto";
    const READER: &str = "proto/reader.proto";
    println!("cargo::rerun-if-changed={SCHEMA}");
    println!("cargo::rerun-if-changed={READER}");
    println!("cargo::rerun-if-changed={EXPERIENCE}");
    let schema = protox::compile([SCHEMA, EXPERIENCE, READER], ["proto"])?;
    prost_build::Config::new()
        // Payloads are slices of the buffer they arrived in, and maps have an order.
        .bytes(["."])
        .btree_map(["."])
        // Secrets must not reach a log through `{:?}`.
        .skip_debug([
            ".rollway.worker.v1.Hello",
            ".rollway.worker.v1.Welcome",
            ".rollway.worker.v1.StartAttempt",
            ".rollway.reader.v1.Hello",
        ])
        .compile_fds(schema)?;
    Ok(())
}
