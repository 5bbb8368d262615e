//! Registry of operators by name.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::{ArgumentError, Operator, operators};
use rollway_base::suggest::nearest;

/// Creates an operator from its arguments.
pub type OperatorConstructor =
    Box<dyn Fn(&Value) -> Result<Box<dyn Operator>, ArgumentError> + Send + Sync>;

pub struct OperatorRegistry {
    constructors: BTreeMap<String, OperatorConstructor>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorRegistryError {
    #[error("unknown operator `{name}`; {remedy}")]
    Unknown { name: String, remedy: String },
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    #[error("there is an operator `{0}` already; register yours under another name")]
    Taken(String),
}

impl OperatorRegistry {
    /// Returns the built-in operators.
    pub fn built_in() -> Self {
        let constructors = operators::BUILT_IN.into_iter().map(|(name, construct)| {
            let constructor: OperatorConstructor = Box::new(construct);
            (name.to_owned(), constructor)
        });
        Self { constructors: constructors.collect() }
    }

    pub fn register<F>(&mut self, name: &str, constructor: F) -> Result<(), OperatorRegistryError>
    where
        F: Fn(&Value) -> Result<Box<dyn Operator>, ArgumentError> + Send + Sync + 'static,
    {
        if self.constructors.contains_key(name) {
            return Err(OperatorRegistryError::Taken(name.to_owned()));
        }
        self.constructors.insert(name.to_owned(), Box::new(constructor));
        Ok(())
    }

    /// Creates the operator of a name; `args` is an object, or `null` for none.
    pub fn build(
        &self,
        name: &str,
        args: &Value,
    ) -> Result<Box<dyn Operator>, OperatorRegistryError> {
        let constructor = self.constructors.get(name).ok_or_else(|| self.unknown(name))?;
        Ok(constructor(args)?)
    }

    /// Returns the names in ascending order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.constructors.keys().map(String::as_str)
    }

    fn unknown(&self, name: &str) -> OperatorRegistryError {
        let remedy = match nearest(name, self.names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there is {}", self.names().collect::<Vec<_>>().join(", ")),
        };
        OperatorRegistryError::Unknown { name: name.to_owned(), remedy }
    }
}

impl Default for OperatorRegistry {
    fn default() -> Self {
        Self::built_in()
    }
}

impl fmt::Debug for OperatorRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
