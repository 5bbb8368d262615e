//! Compiles the schema with a compiler written in Rust: `protoc` is not needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const WORKER: &str = "proto/worker.proto";
    const READER: &str = "proto/reader.proto";
    println!("cargo::rerun-if-changed={WORKER}");
    println!("cargo::rerun-if-changed={READER}");
    let schema = protox::compile([WORKER, READER], ["proto"])?;
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
