//! Products of row-major matrices.

/// `m`, `k` and `n` of a product of `m × k` and `k × n`.
type Sizes = (usize, usize, usize);

/// `c += a · b`, where `a` is `m × k` and `b` is `k × n`.
pub(crate) fn add_product(c: &mut [f32], a: &[f32], b: &[f32], (m, k, n): Sizes) {
    product(c, (a, k, 1), (b, n, 1), (m, k, n));
}

/// `c += a · bᵀ`, where `a` is `m × k` and `b` is `n × k`.
pub(crate) fn add_product_bt(c: &mut [f32], a: &[f32], b: &[f32], (m, k, n): Sizes) {
    product(c, (a, k, 1), (b, 1, k), (m, k, n));
}

/// `c += aᵀ · b`, where `a` is `k × m` and `b` is `k × n`.
pub(crate) fn add_product_at(c: &mut [f32], a: &[f32], b: &[f32], (m, k, n): Sizes) {
    product(c, (a, 1, m), (b, n, 1), (m, k, n));
}

/// Elements, row stride and column stride of a matrix.
type Strided<'a> = (&'a [f32], usize, usize);

fn product(
    c: &mut [f32],
    (a, a_rows, a_columns): Strided<'_>,
    (b, b_rows, b_columns): Strided<'_>,
    (m, k, n): Sizes,
) {
    assert!(c.len() >= m * n && a.len() >= m * k && b.len() >= k * n, "matrices too small");
    #[expect(unsafe_code, reason = "the lengths were checked just now")]
    // SAFETY: all three matrices lie within their slices, and `c` is borrowed alone.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            a_rows as isize,
            a_columns as isize,
            b.as_ptr(),
            b_rows as isize,
            b_columns as isize,
            1.0,
            c.as_mut_ptr(),
            n as isize,
            1,
        );
    }
}
