//! One-dimensional arrays of a known type, which may be slices of a payload.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;

use super::tensor::check_elements;
use super::{Dtype, FieldProblem, Tensor};

/// One-dimensional array: the bytes of its elements, little endian.
///
/// The bytes may be unaligned, so elements are read one by one. Equality compares bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Array<T> {
    data: Bytes,
    element: PhantomData<T>,
}

/// Element type of an [`Array`].
pub trait Element: Copy + fmt::Debug + private::Sealed {
    const DTYPE: Dtype;

    fn read(data: &[u8]) -> impl ExactSizeIterator<Item = Self> + '_;

    /// Appends elements to a buffer.
    fn write(elements: impl Iterator<Item = Self>, out: &mut Vec<u8>);
}

impl<T: Element> Array<T> {
    /// Wraps the bytes of the elements.
    pub fn from_bytes(data: Bytes) -> Result<Self, FieldProblem> {
        let found = data.len();
        let spare = found % T::DTYPE.size();
        if spare != 0 {
            return Err(FieldProblem::DataBytes { found, expected: Some(found - spare) });
        }
        check_elements(T::DTYPE, &data)?;
        Ok(Self { data, element: PhantomData })
    }

    pub fn len(&self) -> usize {
        self.data.len() / T::DTYPE.size()
    }

    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        T::read(&self.data)
    }

    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }

    pub fn bytes(&self) -> &Bytes {
        &self.data
    }
}

/// Keeps the bytes. `int64` is copied to `int32` if all numbers fit.
impl<T: Element> TryFrom<Tensor> for Array<T> {
    type Error = FieldProblem;

    fn try_from(tensor: Tensor) -> Result<Self, FieldProblem> {
        let (found, shape, mut data) = tensor.into_parts();
        if shape.len() != 1 {
            return Err(FieldProblem::Rank { found: shape.len(), expected: 1 });
        }
        match (found, T::DTYPE) {
            (Dtype::I64, Dtype::I32) => data = narrow(&data)?,
            (_, expected) if found != expected => {
                return Err(FieldProblem::Dtype { found, expected });
            }
            _ => {}
        }
        Ok(Self { data, element: PhantomData })
    }
}

/// Converts the bytes of `int64` elements to those of `int32`.
fn narrow(data: &[u8]) -> Result<Bytes, FieldProblem> {
    let (wide, _) = data.as_chunks();
    let mut narrow = Vec::with_capacity(data.len() / 2);
    for (index, value) in wide.iter().map(|&bytes| i64::from_le_bytes(bytes)).enumerate() {
        let value = i32::try_from(value).map_err(|_| FieldProblem::OutOfRange { index, value })?;
        narrow.extend_from_slice(&value.to_le_bytes());
    }
    Ok(narrow.into())
}

impl<T> Default for Array<T> {
    fn default() -> Self {
        Self { data: Bytes::new(), element: PhantomData }
    }
}

impl<T: Element> FromIterator<T> for Array<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let elements = elements.into_iter();
        let mut data = Vec::with_capacity(elements.size_hint().0.saturating_mul(T::DTYPE.size()));
        T::write(elements, &mut data);
        Self { data: data.into(), element: PhantomData }
    }
}

impl<T: Element> From<Vec<T>> for Array<T> {
    fn from(elements: Vec<T>) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Element, const N: usize> From<[T; N]> for Array<T> {
    fn from(elements: [T; N]) -> Self {
        elements.into_iter().collect()
    }
}

impl<T: Element> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

macro_rules! number {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn read(data: &[u8]) -> impl ExactSizeIterator<Item = Self> + '_ {
                let (elements, _) = data.as_chunks();
                elements.iter().map(|&bytes| Self::from_le_bytes(bytes))
            }

            fn write(elements: impl Iterator<Item = Self>, out: &mut Vec<u8>) {
                for element in elements {
                    out.extend_from_slice(&element.to_le_bytes());
                }
            }
        }
    };
}

number!(i32, I32);
number!(f32, F32);

impl Element for bool {
    const DTYPE: Dtype = Dtype::Bool;

    fn read(data: &[u8]) -> impl ExactSizeIterator<Item = Self> + '_ {
        data.iter().map(|&byte| byte != 0)
    }

    fn write(elements: impl Iterator<Item = Self>, out: &mut Vec<u8>) {
        out.extend(elements.map(u8::from));
    }
}

mod private {
    /// Restricts elements to those of the format.
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for f32 {}
    impl Sealed for bool {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_numbers_are_accepted_if_they_fit() {
        let wide = |numbers: &[i64]| {
            let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            Tensor::new(Dtype::I64, vec![numbers.len()], data.into()).unwrap()
        };
        let tokens = Array::try_from(wide(&[1, -2, 2_147_483_647])).unwrap();
        assert_eq!(tokens, Array::from([1, -2, i32::MAX]));
        let error = Array::<i32>::try_from(wide(&[0, 2_147_483_648])).unwrap_err();
        assert_eq!(error, FieldProblem::OutOfRange { index: 1, value: 2_147_483_648 });
    }

    #[test]
    fn another_type_or_shape_is_refused() {
        let floats = Array::from([1.5_f32, 2.0]).bytes().clone();
        let floats = Tensor::new(Dtype::F32, vec![2], floats).unwrap();
        assert_eq!(Array::<f32>::try_from(floats.clone()).unwrap().to_vec(), [1.5, 2.0]);
        let error = Array::<i32>::try_from(floats).unwrap_err();
        assert_eq!(error, FieldProblem::Dtype { found: Dtype::F32, expected: Dtype::I32 });
        let square = Tensor::new(Dtype::F32, vec![1, 1], Bytes::from_static(&[0; 4])).unwrap();
        let error = Array::<f32>::try_from(square).unwrap_err();
        assert_eq!(error, FieldProblem::Rank { found: 2, expected: 1 });
    }

    #[test]
    fn bytes_must_be_whole_elements() {
        let error = Array::<i32>::from_bytes(Bytes::from_static(&[0; 6])).unwrap_err();
        assert_eq!(error, FieldProblem::DataBytes { found: 6, expected: Some(4) });
        assert!(Array::<bool>::from_bytes(Bytes::from_static(&[1, 3])).is_err());
    }
}
