// Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
//
// Small matrix products with float32 accumulation, and the layouts they read. Scalars S are float or BFloat16.
//
//   left operands   row-major, leading dimension given
//   right operands  "packed": float row-major; BFloat16 in pairs of rows, so that element (k, n) of an (K, N) matrix
//                   lies at (k / 2) * 2N + 2n + k % 2, which is what dot-product instructions read
//
// Every size is padded to a multiple of STEP: kernels are generated per size, and few sizes mean few kernels.

#pragma once

#include <ATen/ATen.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/impl/alloc_cpu.h>

#include <limits>
#include <type_traits>

namespace composite {

using at::BFloat16;
using Vec = at::vec::Vectorized<float>;

constexpr int64_t STEP = 16;      // sizes of matrices
constexpr int64_t QUERIES = 64;   // rows of a tile of scores
constexpr int64_t PANEL = 64;     // columns that one product makes
constexpr int64_t KEYS = 256;     // columns of a tile of scores

inline int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

// Memory of one thread, 64-byte aligned, not initialised; poisoned in the build that the sanitizer tests use.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : data_(static_cast<T*>(c10::alloc_cpu(std::max<int64_t>(count, 1) * sizeof(T)))) {
#ifdef COMPOSITE_POISON
    std::fill(data_, data_ + count, std::numeric_limits<float>::quiet_NaN());
#endif
  }
  ~Buffer() {
    c10::free_cpu(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const {
    return data_;
  }

 private:
  T* data_;
};

// Where the packed element (row, column) of a matrix with `columns` columns lies.
template <typename S>
inline int64_t packed_place(int64_t row, int64_t column, int64_t columns) {
  if constexpr (std::is_same_v<S, float>) {
    return row * columns + column;
  } else {
    return row / 2 * 2 * columns + 2 * column + row % 2;
  }
}

// x (rows, columns), row stride `stride` -> row-major (padded_rows, padded_columns), zeros where there was nothing.
template <typename S>
inline void copy_rows(
    const S* x, int64_t stride, int64_t rows, int64_t columns, int64_t padded_rows, int64_t padded_columns, S* out) {
  for (int64_t i = 0; i < padded_rows; i++) {
    S* row = out + i * padded_columns;
    const int64_t filled = i < rows ? columns : 0;
    std::copy(x + (i < rows ? i * stride : 0), x + (i < rows ? i * stride : 0) + filled, row);
    std::fill(row + filled, row + padded_columns, S(0));
  }
}

// The same, packed as a right operand of which x's rows are the rows.
template <typename S>
inline void pack_rows(
    const S* x, int64_t stride, int64_t rows, int64_t columns, int64_t padded_rows, int64_t padded_columns, S* out) {
  if constexpr (std::is_same_v<S, float>) {
    copy_rows(x, stride, rows, columns, padded_rows, padded_columns, out);
  } else {
    const int64_t pairs = rows / 2;
    for (int64_t pair = 0; pair < pairs; pair++) {
      const S* first = x + 2 * pair * stride;
      const S* second = first + stride;
      S* target = out + 2 * pair * padded_columns;
      for (int64_t c = 0; c < columns; c++) {
        target[2 * c] = first[c];
        target[2 * c + 1] = second[c];
      }
      std::fill(target + 2 * columns, target + 2 * padded_columns, S(0));
    }
    std::fill(out + 2 * pairs * padded_columns, out + padded_rows * padded_columns, S(0));
    if (rows % 2) {
      for (int64_t c = 0; c < columns; c++) {
        out[packed_place<S>(rows - 1, c, padded_columns)] = x[(rows - 1) * stride + c];
      }
    }
  }
}

// x (rows, columns) of 32-bit words -> out (columns, rows).
inline void transpose_words(
    const float* x, int64_t stride, int64_t rows, int64_t columns, float* out, int64_t out_stride) {
  const int64_t whole_rows = rows / STEP * STEP, whole_columns = columns / STEP * STEP;
  for (int64_t i = 0; i < whole_rows; i += STEP) {
    for (int64_t c = 0; c < whole_columns; c += STEP) {
      at::vec::transpose_mxn<float, 16, 16>(x + i * stride + c, stride, out + c * out_stride + i, out_stride);
    }
  }
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t c = i < whole_rows ? whole_columns : 0; c < columns; c++) {
      out[c * out_stride + i] = x[i * stride + c];
    }
  }
}

// x (rows, columns) transposed and packed in panels of PANEL of x's rows: panel p is a packed right operand
// (padded_columns, PANEL) at out + p * PANEL * padded_columns.
template <typename S>
inline void pack_transposed(
    const S* x, int64_t stride, int64_t rows, int64_t columns, int64_t padded_rows, int64_t padded_columns, S* out) {
  // A pair of BFloat16 columns is one word to move.
  constexpr int64_t PER_WORD = sizeof(float) / sizeof(S);
  const bool in_words = columns % PER_WORD == 0 && stride % PER_WORD == 0 &&
      reinterpret_cast<uintptr_t>(x) % sizeof(float) == 0;
  for (int64_t start = 0; start < padded_rows; start += PANEL) {
    S* panel = out + start * padded_columns;
    const S* source = x + start * stride;
    const int64_t filled = std::min<int64_t>(PANEL, std::max<int64_t>(rows - start, 0));
    if (filled < PANEL || columns < padded_columns) {
      std::fill(panel, panel + PANEL * padded_columns, S(0));
    }
    if (in_words) {
      transpose_words(
          reinterpret_cast<const float*>(source), stride / PER_WORD, filled, columns / PER_WORD,
          reinterpret_cast<float*>(panel), PANEL);
      continue;
    }
    for (int64_t i = 0; i < filled; i++) {
      for (int64_t c = 0; c < columns; c++) {
        panel[packed_place<S>(c, i, PANEL)] = source[i * stride + c];
      }
    }
  }
}

// x (rows, columns) -> out (columns, rows); both sizes multiples of STEP.
template <typename S>
inline void transpose(const S* x, int64_t stride, int64_t rows, int64_t columns, S* out, int64_t out_stride) {
  for (int64_t i = 0; i < rows; i += STEP) {
    for (int64_t c = 0; c < columns; c += STEP) {
      at::vec::transpose_mxn<S, 16, 16>(x + i * stride + c, stride, out + c * out_stride + i, out_stride);
    }
  }
}

// C (m, n) = A (m, k) B (k, n), or C += A B. Written out with vectors, for machines without generated kernels.
template <typename S>
inline void plain_product(
    int64_t m, int64_t n, int64_t k, const S* a, int64_t lda, const S* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  constexpr int64_t ROWS = 4;
  for (int64_t i = 0; i < m; i += ROWS) {
    for (int64_t j = 0; j < n; j += Vec::size()) {
      Vec sum[ROWS];
      for (int64_t r = 0; r < ROWS; r++) {
        sum[r] = add ? Vec::loadu(c + (i + r) * ldc + j) : Vec(0.f);
      }
      for (int64_t x = 0; x < k; x++) {
        Vec right;
        if constexpr (std::is_same_v<S, float>) {
          right = Vec::loadu(b + x * ldb + j);
        } else {
          float widened[Vec::size()];
          for (int64_t l = 0; l < Vec::size(); l++) {
            widened[l] = b[packed_place<S>(x, j + l, ldb)];
          }
          right = Vec::loadu(widened);
        }
        for (int64_t r = 0; r < ROWS; r++) {
          sum[r] = at::vec::fmadd(Vec(static_cast<float>(a[(i + r) * lda + x])), right, sum[r]);
        }
      }
      for (int64_t r = 0; r < ROWS; r++) {
        sum[r].store(c + (i + r) * ldc + j);
      }
    }
  }
}

#if defined(CPUBLAS_BRGEMM_F32F32F32) && defined(CPUBLAS_BRGEMM_BF16BF16F32) && !defined(COMPOSITE_PLAIN_PRODUCT)
constexpr bool HAS_GENERATED = true;
#else
constexpr bool HAS_GENERATED = false;
#endif

// Whether torch can generate kernels for S on this machine: it throws where not.
template <typename S>
inline bool can_generate() {
  if constexpr (HAS_GENERATED) {
    static const bool found = [] {
      Buffer<S> a(STEP * STEP), b(STEP * STEP);
      Buffer<float> c(STEP * STEP);
      std::fill(a.get(), a.get() + STEP * STEP, S(1));
      std::fill(b.get(), b.get() + STEP * STEP, S(1));
      try {
        at::native::cpublas::brgemm(STEP, STEP, STEP, STEP, STEP, STEP, false, a.get(), b.get(), c.get());
        at::native::cpublas::brgemm_release();
      } catch (const c10::Error&) {
        return false;
      }
      return c.get()[0] == STEP && c.get()[STEP * STEP - 1] == STEP;
    }();
    return found;
  }
  return false;
}

// C (m, n) = A (m, k) B (k, n), or C += A B: B packed, all sizes multiples of STEP.
template <typename S>
inline void product(
    int64_t m, int64_t n, int64_t k, const S* a, int64_t lda, const S* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  if constexpr (HAS_GENERATED) {
    if (can_generate<S>()) {
      at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c);
      return;
    }
  }
  plain_product(m, n, k, a, lda, b, ldb, c, ldc, add);
}

// Gives back what generated kernels hold of the machine's matrix unit; at the end of a thread's work.
inline void end_products() {
  if constexpr (HAS_GENERATED) {
    if (can_generate<BFloat16>()) {
      at::native::cpublas::brgemm_release();
    }
  }
}

}  // namespace composite
