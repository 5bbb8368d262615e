//! Names of things: small numbers that cannot be mistaken for one another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One request to the core, named by the caller; it is answered exactly once.
    RequestId(u64), "q"
);
id!(
    /// One life of a batch id. An id that is used again gets a new key, so that nothing of an
    /// earlier life can be taken for the present one.
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
    /// One life of a runner: every start of the slot is a new life, and reports of an earlier life
    /// are refused.
    Incarnation(u32), "l"
);
id!(
    /// The experiences of one run, held by the caller; the core only decides how long.
    PayloadId(u64), "p"
);
id!(
    /// Results on their way out: to a sink or to whoever collected them.
    LeaseId(u64), "d"
);
id!(
    /// A kind of work; the dynamic timeout learns for each separately.
    WorkflowId(u32), "f"
);
