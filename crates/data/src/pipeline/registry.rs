//! Operators by name: how a configuration becomes a pipeline.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::{ArgumentError, Operator, operators};
use rollway_base::suggest::nearest;

/// Makes an operator of its arguments.
pub type OperatorConstructor =
    Box<dyn Fn(&Value) -> Result<Box<dyn Operator>, ArgumentError> + Send + Sync>;

/// The operators that a configuration can name.
pub struct OperatorRegistry {
    constructors: BTreeMap<String, OperatorConstructor>,
}

/// Why there is no operator of a name, or no further one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorRegistryError {
    /// Nobody registered the name.
    #[error("unknown operator `{name}`; {remedy}")]
    Unknown {
        name: String,
        /// What may have been meant, or what there is.
        remedy: String,
    },
    /// The arguments are wrong.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The name is in use.
    #[error("there is an operator `{0}` already; register yours under another name")]
    Taken(String),
}

impl OperatorRegistry {
    /// Returns the operators that come with the pipeline.
    pub fn built_in() -> Self {
        let constructors = operators::BUILT_IN.into_iter().map(|(name, construct)| {
            let constructor: OperatorConstructor = Box::new(construct);
            (name.to_owned(), constructor)
        });
        Self { constructors: constructors.collect() }
    }

    /// Adds an operator.
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

    /// Makes the operator of a name; `args` is an object, or `null` for none.
    pub fn build(
        &self,
        name: &str,
        args: &Value,
    ) -> Result<Box<dyn Operator>, OperatorRegistryError> {
        let constructor = self.constructors.get(name).ok_or_else(|| self.unknown(name))?;
        Ok(constructor(args)?)
    }

    /// Returns the names, ascending.
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
