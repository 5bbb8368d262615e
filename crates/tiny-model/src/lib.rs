//! A small decoder-only transformer for the CPU, so that the whole loop of reinforcement learning
//! runs with nothing to download: it answers like any other model, and it learns.
//!
//! [`ModelWeights`] are the parameters, read and written as safetensors. [`Generator`] continues
//! prompts, many at once, with a cache of keys and values. [`ModelTrainer`] makes one step of
//! cross-entropy ([`ModelTrainer::imitate`]) or of GRPO ([`ModelTrainer::reinforce`]).
//! [`Vocabulary`] makes tokens of texts. [`arithmetic()`] is a model to begin with.
//!
//! Everything is deterministic: the same weights, prompt, temperature and seed give the same
//! tokens, whatever else is generated at the same time; the same samples give the same step,
//! whatever the number of cores.

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
