//! Kinds of inference servers.

use std::fmt;
use std::str::FromStr;

use crate::suggest;

/// Declares the kinds with their names and properties. The doc comments are the descriptions in the
/// configuration.
macro_rules! server_kinds {
    ($(
        $(#[doc = $doc:literal])+
        $kind:ident = $name:literal { tokens: $tokens:literal, weight_updates: $updates:literal }
    )+) => {
        /// Kind of an inference server: determines its API and its control endpoints.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ServerKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl ServerKind {
            /// All kinds.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// Returns the name in configurations, APIs and commands.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// Returns whether responses can have the token ids that training needs.
            pub const fn has_tokens(self) -> bool {
                match self { $(Self::$kind => $tokens,)+ }
            }

            /// Returns whether weights can be updated while the server runs.
            pub const fn updates_weights(self) -> bool {
                match self { $(Self::$kind => $updates,)+ }
            }

            /// Returns the description in the reference of the configuration.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$kind => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

server_kinds! {
    /// vLLM.
    Vllm = "vllm" { tokens: true, weight_updates: true }
    /// SGLang.
    Sglang = "sglang" { tokens: true, weight_updates: true }
    /// `llama-server` of llama.cpp.
    LlamaCpp = "llama_cpp" { tokens: true, weight_updates: false }
    /// Other servers with an OpenAI API. They return no token ids: not for training.
    Openai = "openai" { tokens: false, weight_updates: false }
}

impl ServerKind {
    /// Returns the names of the kinds with a property: `vllm or sglang`.
    pub fn either(has_property: fn(Self) -> bool) -> String {
        let kinds = Self::ALL.into_iter().filter(|kind| has_property(*kind));
        suggest::either(kinds.map(Self::name))
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of no server kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown server kind `{name}`: {}",
    suggest::instead(name, ServerKind::ALL.into_iter().map(ServerKind::name))
)]
pub struct UnknownServerKind {
    pub name: String,
}

impl FromStr for ServerKind {
    type Err = UnknownServerKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownServerKind { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_parsed_back() {
        for kind in ServerKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
    }

    #[test]
    fn kinds_with_a_property_are_listed() {
        assert_eq!(ServerKind::either(ServerKind::has_tokens), "vllm, sglang or llama_cpp");
        assert_eq!(ServerKind::either(ServerKind::updates_weights), "vllm or sglang");
    }

    #[test]
    fn an_unknown_name_gets_a_suggestion() {
        let error = |name: &str| name.parse::<ServerKind>().expect_err("unknown").to_string();
        assert_eq!(error("vlm"), "unknown server kind `vlm`: did you mean `vllm`?");
        let all = "available: vllm, sglang, llama_cpp, openai";
        assert_eq!(error("triton"), format!("unknown server kind `triton`: {all}"));
    }
}
