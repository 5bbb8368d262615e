//! Declaration of keys: type, default, bounds and description of a key stand in one place.

/// Declares sections of the configuration. A key without `= value` has the default of its type.
/// The doc comments are the descriptions in the JSON Schema and in the reference of keys.
macro_rules! section {
    ($($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$attr:meta])* $vis:vis $key:ident: $type:ty $(= $default:expr)?,)*
    })*) => {$(
        #[derive(
            Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[serde(default, deny_unknown_fields)]
        $(#[$meta])*
        pub struct $name {
            $($(#[$attr])* $vis $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: section!(@default $($default)?),)* }
            }
        }
    )*};
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

/// Declares the choices of a key, which are written in snake case.
macro_rules! choices {
    ($($(#[$meta:meta])* pub enum $name:ident { $($choices:tt)* })*) => {$(
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[serde(rename_all = "snake_case")]
        $(#[$meta])*
        pub enum $name { $($choices)* }

        impl $name {
            /// Returns the name in a configuration.
            pub fn name(self) -> String {
                crate::choice_name(self)
            }
        }
    )*};
}
