//! Arrays of any type and shape.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use super::{FieldError, FieldProblem};

/// Type of an element. The numbers are those of `proto/experience.proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool = 1,
    U8,
    I8,
    I16,
    I32,
    I64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an [`F32`](Self::F32).
    Bf16,
    F32,
    F64,
}

impl Dtype {
    pub const ALL: [Self; 10] = {
        use Dtype::*;
        [Bool, U8, I8, I16, I32, I64, F16, Bf16, F32, F64]
    };

    /// Returns the name in numpy and torch and the size of an element in bytes.
    fn name_and_size(self) -> (&'static str, usize) {
        match self {
            Self::Bool => ("bool", 1),
            Self::U8 => ("uint8", 1),
            Self::I8 => ("int8", 1),
            Self::I16 => ("int16", 2),
            Self::I32 => ("int32", 4),
            Self::I64 => ("int64", 8),
            Self::F16 => ("float16", 2),
            Self::Bf16 => ("bfloat16", 2),
            Self::F32 => ("float32", 4),
            Self::F64 => ("float64", 8),
        }
    }

    /// Size of an element in bytes.
    pub fn size(self) -> usize {
        self.name_and_size().1
    }

    /// Name in numpy and torch: `bool`, `uint8`, `bfloat16`.
    pub fn name(self) -> &'static str {
        self.name_and_size().0
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = FieldError;

    fn from_str(name: &str) -> Result<Self, FieldError> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| FieldProblem::UnknownName(name.to_owned()).at("dtype"))
    }
}

/// An array of any type and shape: little endian, row-major, without gaps.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Bytes,
}

impl Tensor {
    /// Maximum number of dimensions.
    pub const MAX_RANK: usize = 32;

    /// Wraps the bytes of the elements.
    pub fn new(dtype: Dtype, shape: Vec<usize>, data: Bytes) -> Result<Self, FieldProblem> {
        if shape.len() > Self::MAX_RANK {
            return Err(FieldProblem::TooMany { found: shape.len(), limit: Self::MAX_RANK });
        }
        let expected = data_bytes(dtype, &shape);
        if expected != Some(data.len()) {
            return Err(FieldProblem::DataBytes { found: data.len(), expected });
        }
        check_elements(dtype, &data)?;
        Ok(Self { dtype, shape, data })
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Sizes of the dimensions; empty for a single element.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn data(&self) -> &Bytes {
        &self.data
    }

    pub fn into_parts(self) -> (Dtype, Vec<usize>, Bytes) {
        (self.dtype, self.shape, self.data)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {:?}, {} bytes)", self.dtype, self.shape, self.data.len())
    }
}

/// Returns the size of an array in bytes. `None`: it overflows.
pub(super) fn data_bytes(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size))
}

/// Checks that truth values are 0 or 1.
pub(super) fn check_elements(dtype: Dtype, data: &[u8]) -> Result<(), FieldProblem> {
    if dtype != Dtype::Bool {
        return Ok(());
    }
    // A loop without an early return is vectorized.
    let all = data.iter().fold(0, |all, byte| all | byte);
    if all <= 1 {
        return Ok(());
    }
    let index = data.iter().position(|&byte| byte > 1).unwrap_or_default();
    Err(FieldProblem::NotBool { index })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_and_data_must_agree() {
        let of = |shape: &[usize], bytes: usize| {
            Tensor::new(Dtype::I16, shape.to_vec(), Bytes::from(vec![0; bytes])).map(drop)
        };
        assert_eq!(of(&[2, 3], 12), Ok(()));
        assert_eq!(of(&[], 2), Ok(()));
        assert_eq!(of(&[5, 0], 0), Ok(()));
        assert_eq!(of(&[3], 5), Err(FieldProblem::DataBytes { found: 5, expected: Some(6) }));
        let overflow = of(&[usize::MAX, 2], 0);
        assert_eq!(overflow, Err(FieldProblem::DataBytes { found: 0, expected: None }));
        assert_eq!(of(&[1; 33], 2), Err(FieldProblem::TooMany { found: 33, limit: 32 }));
    }

    #[test]
    fn truth_values_are_checked() {
        let error = Tensor::new(Dtype::Bool, vec![3], Bytes::from_static(&[0, 1, 2])).unwrap_err();
        assert_eq!(error, FieldProblem::NotBool { index: 2 });
    }

    #[test]
    fn names_are_read_back() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
    }
}
