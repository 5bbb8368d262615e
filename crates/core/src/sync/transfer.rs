//! Description of weights that the trainer sends to inference servers over a process group.

/// A process group that weights are sent over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferGroup {
    pub master_address: String,
    pub master_port: u16,
    /// Number of members: the trainer, which has rank 0, and the workers of all servers.
    pub world_size: u32,
    /// Number of members of each server.
    pub ranks_per_server: u32,
    pub name: String,
    /// Communication backend: `nccl`.
    pub backend: String,
    /// True if the servers must join first: true for the first update over this group.
    pub join: bool,
    /// Tensors in the order in which they are sent.
    pub tensors: Vec<TensorSpec>,
}

/// Name, type and shape of a tensor that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub dtype: String,
    /// Dimensions.
    pub shape: Vec<u64>,
}
