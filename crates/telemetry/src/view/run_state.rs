//! Run states in JSON, by name.

use rollway_core::RunState;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(state: &RunState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.name())
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<RunState, D::Error> {
    parse(&String::deserialize(from)?)
}

fn parse<E: Error>(name: &str) -> Result<RunState, E> {
    let found = RunState::ALL.iter().find(|state| state.name() == name);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = RunState::ALL.iter().map(|state| state.name()).collect();
        E::custom(format!("unknown run state `{name}`, expected one of {}", names.join(", ")))
    })
}

/// An optional state.
pub(super) mod option {
    use super::{Deserialize, Deserializer, RunState, Serializer, parse};

    #[expect(clippy::ref_option, reason = "the signature is serde's")]
    pub(in crate::view) fn serialize<S: Serializer>(
        state: &Option<RunState>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match state {
            Some(state) => to.serialize_some(state.name()),
            None => to.serialize_none(),
        }
    }

    pub(in crate::view) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<RunState>, D::Error> {
        let name = Option::<String>::deserialize(from)?;
        name.as_deref().map(parse).transpose()
    }
}
