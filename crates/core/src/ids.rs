//! Ids: small numbers with distinct types.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One request to the core, chosen by the caller; it gets exactly one response.
    RequestId(u64), "q"
);
id!(
    /// One use of a batch id. An id that is used again gets a new key, so that uses are never
    /// confused.
    BatchKey(u64), "b"
);
id!(
    /// A task: its position in its batch, over all calls that added to the batch.
    TaskId(u32), "t"
);
id!(
    /// A run: its position among the `repeat_times` runs of its task.
    RunId(u32), "r"
);
id!(
    /// One execution of a slice on one runner; never used twice.
    AttemptId(u64), "a"
);
id!(
    /// An execution slot.
    RunnerId(u32), "w"
);
id!(
    /// One start of a runner. Reports of earlier incarnations are ignored.
    Incarnation(u32), "l"
);
id!(
    /// The experiences of one run, held by the caller; the core decides when they are released.
    PayloadId(u64), "p"
);
id!(
    /// Results handed out to the sink or a collector and not yet acknowledged.
    LeaseId(u64), "d"
);
id!(
    /// A workflow; the dynamic timeout is learned per workflow.
    WorkflowId(u32), "f"
);
