//! A small decoder-only transformer for the CPU, so that a complete reinforcement-learning job runs
//! without a download.
//!
//! [`ModelWeights`] are the parameters, stored as safetensors. [`Generator`] samples many prompts
//! at once with a KV cache. [`ModelTrainer`] makes one step of cross-entropy
//! ([`ModelTrainer::imitate`]) or GRPO ([`ModelTrainer::reinforce`]). [`Vocabulary`] is the
//! tokenizer. [`arithmetic()`] is the bundled model.
//!
//! Everything is deterministic: weights, prompt, temperature and seed decide the tokens, whatever
//! else is generated; samples decide the step, whatever the number of cores.

mod adam;
mod arithmetic;
mod attention;
mod backward;
mod chance;
mod files;
mod forward;
mod generate;
mod linear;
mod norm;
mod shape;
mod train;
mod vocabulary;
mod weights;

pub use self::adam::Rate;
pub use self::arithmetic::arithmetic;
pub use self::chance::SeededRng;
pub use self::files::WeightsError;
pub use self::generate::{GenerateRequest, Generated, Generator, Sampled, StopReason};
pub use self::shape::ModelShape;
pub use self::train::{GrpoConfig, ModelTrainer, TrainSample, TrainStepReport};
pub use self::vocabulary::{UnknownCharacter, Vocabulary};
pub use self::weights::ModelWeights;
