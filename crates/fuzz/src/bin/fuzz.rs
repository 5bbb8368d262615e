//! Coverage-guided runs of one target with libFuzzer; started by `cargo xtask fuzz`.
//!
//! `ROLLWAY_FUZZ_TARGET` names the target. With `ROLLWAY_FUZZ_SEEDS` it writes the seeds to that
//! folder and exits.

#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use rollway_fuzz::{FuzzTarget, is_of_columnar_reader};

static TARGET: OnceLock<&FuzzTarget> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("ROLLWAY_FUZZ_TARGET").expect("ROLLWAY_FUZZ_TARGET is set");
        let target = FuzzTarget::named(&name).expect("ROLLWAY_FUZZ_TARGET names a target");
        if let Some(folder) = std::env::var_os("ROLLWAY_FUZZ_SEEDS") {
            for (number, seed) in target.seeds().iter().enumerate() {
                let path = Path::new(&folder).join(format!("seed-{number}"));
                std::fs::write(path, seed).expect("the folder of seeds is writable");
            }
            std::process::exit(0);
        }
        // Ends the process at a panic of any thread or task, except where the product catches it.
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_of_columnar_reader(panic) {
                earlier(panic);
            }
        }));
        // Values that are initialized once are no memory of an input.
        target.seeds().iter().for_each(|seed| target.check(seed));
        TARGET.get_or_init(|| target);
    },
    |input: &[u8]| {
        TARGET.get().expect("the target is initialized").check(input);
    }
);
