//! Shape of a model and layout of its tensors in the parameters.

use std::ops::Range;

/// Sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelShape {
    pub vocabulary: usize,
    /// Embedding size; a multiple of `heads`.
    pub width: usize,
    pub layers: usize,
    /// Attention heads per block.
    pub heads: usize,
    /// Maximum tokens of a sequence.
    pub context: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorLayout {
    pub(crate) name: String,
    pub(crate) dims: Vec<usize>,
    pub(crate) range: Range<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct BlockLayout {
    pub(crate) attention_norm: Range<usize>,
    /// Queries, keys and values side by side: `width × 3 width`.
    pub(crate) qkv: Range<usize>,
    pub(crate) out: Range<usize>,
    pub(crate) feed_norm: Range<usize>,
    pub(crate) up: Range<usize>,
    pub(crate) down: Range<usize>,
}

/// Ranges of all tensors in the parameters, which are one slice.
#[derive(Clone, Debug)]
pub(crate) struct ModelLayout {
    /// Tied embedding of inputs and outputs.
    pub(crate) tokens: Range<usize>,
    pub(crate) positions: Range<usize>,
    pub(crate) blocks: Vec<BlockLayout>,
    pub(crate) norm: Range<usize>,
    pub(crate) tensors: Vec<TensorLayout>,
}

impl ModelShape {
    /// Width of the feed-forward layer.
    pub(crate) const fn inner(&self) -> usize {
        4 * self.width
    }

    /// Width of a head.
    pub(crate) const fn head(&self) -> usize {
        self.width / self.heads
    }

    /// Returns what is wrong with the sizes.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let Self { vocabulary, width, layers, heads, context } = *self;
        if [vocabulary, width, layers, heads, context].contains(&0) {
            return Some("every part of a shape is at least one");
        }
        (width % heads != 0).then_some("the width is a multiple of the number of heads")
    }

    pub(crate) fn layout(&self) -> ModelLayout {
        let mut plan = LayoutPlan::default();
        let (d, h) = (self.width, self.inner());
        let tokens = plan.add("tokens", &[self.vocabulary, d]);
        let positions = plan.add("positions", &[self.context, d]);
        let block = |plan: &mut LayoutPlan, at: usize| BlockLayout {
            attention_norm: plan.add(&format!("blocks.{at}.attention.norm"), &[d]),
            qkv: plan.add(&format!("blocks.{at}.attention.qkv"), &[d, 3 * d]),
            out: plan.add(&format!("blocks.{at}.attention.out"), &[d, d]),
            feed_norm: plan.add(&format!("blocks.{at}.feed.norm"), &[d]),
            up: plan.add(&format!("blocks.{at}.feed.up"), &[d, h]),
            down: plan.add(&format!("blocks.{at}.feed.down"), &[h, d]),
        };
        let blocks = (0..self.layers).map(|at| block(&mut plan, at)).collect();
        let norm = plan.add("norm", &[d]);
        ModelLayout { tokens, positions, blocks, norm, tensors: plan.tensors }
    }
}

#[derive(Default)]
struct LayoutPlan {
    tensors: Vec<TensorLayout>,
}

impl LayoutPlan {
    fn add(&mut self, name: &str, dims: &[usize]) -> Range<usize> {
        let begin = self.tensors.last().map_or(0, |last| last.range.end);
        let range = begin..begin + dims.iter().product::<usize>();
        let tensor = TensorLayout { name: name.into(), dims: dims.into(), range: range.clone() };
        self.tensors.push(tensor);
        range
    }
}
