//! Arrays of any type and shape, as the bytes of their elements.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use super::{FieldError, FieldProblem};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// IEEE 754, 16 bits.
    F16,
    /// The upper half of an [`F32`](Self::F32).
    Bf16,
    /// IEEE 754, 32 bits.
    F32,
    /// IEEE 754, 64 bits.
    F64,
}

impl Dtype {
    /// All there are.
    pub const ALL: [Self; 10] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
    ];

    /// Returns how many bytes an element has.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns its name as numpy and torch spell it: `bool`, `uint8`, `bfloat16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
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

/// An array of any type and shape: little endian, the last dimension fastest, nothing between the
/// elements.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Bytes,
}

impl Tensor {
    /// How many dimensions there may be.
    pub const MAX_RANK: usize = 32;

    /// Makes an array of the bytes of its elements.
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

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the size of each dimension; empty for a single element.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the bytes of the elements.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Returns the type of the elements, the sizes of the dimensions and the bytes.
    pub fn into_parts(self) -> (Dtype, Vec<usize>, Bytes) {
        (self.dtype, self.shape, self.data)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {:?}, {} bytes)", self.dtype, self.shape, self.data.len())
    }
}

/// Returns how many bytes an array takes, if they can be counted.
pub(super) fn data_bytes(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size))
}

/// Checks that no element has a forbidden value.
pub(super) fn check_elements(dtype: Dtype, data: &[u8]) -> Result<(), FieldProblem> {
    if dtype != Dtype::Bool {
        return Ok(());
    }
    // Without an early end the compiler looks at many bytes at once.
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
    fn shape_and_data_have_to_fit() {
        let of = |shape: &[usize], bytes: usize| {
            Tensor::new(Dtype::I16, shape.to_vec(), Bytes::from(vec![0; bytes])).map(drop)
        };
        assert_eq!(of(&[2, 3], 12), Ok(()));
        assert_eq!(of(&[], 2), Ok(()));
        assert_eq!(of(&[5, 0], 0), Ok(()));
        assert_eq!(of(&[3], 5), Err(FieldProblem::DataBytes { found: 5, expected: Some(6) }));
        let endless = of(&[usize::MAX, 2], 0);
        assert_eq!(endless, Err(FieldProblem::DataBytes { found: 0, expected: None }));
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
