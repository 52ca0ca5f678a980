// Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
//
// Composite attention in one pass over tiles of scores, forward and backward: no (L, L) tensor is ever made.
// The arithmetic of a row stands in scores.h, that of matrices in matrices.h; here are the loops and the operators.
//
// The softmax is taken on the fly (Milakov and Gimelshein 2018; Dao et al. 2022): per row the highest score so far and
// the sum of exponents; what was summed up before is scaled down when a higher score comes.

#include "scores.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <tuple>

namespace composite {

using at::Tensor;

// What forward and backward read. Queries, keys and values (B, H, L, D) with any strides but the last.
struct Problem {
  Tensor query, key, value, query_slots, key_slots, mask, borders;
  int64_t batch, heads, length, size;
  int64_t padded_length, padded_size, blocks;
  Terms terms;
  Dropout dropout;

  Problem(
      const Tensor& query_, const Tensor& key_, const Tensor& value_, const std::optional<Tensor>& query_slots_,
      const std::optional<Tensor>& key_slots_, const std::optional<Tensor>& mask_,
      const std::optional<Tensor>& borders_, int64_t kernel_size, bool window, double scale, double rate,
      const Tensor& seed)
      : query(dense(query_)), key(dense(key_)), value(dense(value_)) {
    TORCH_CHECK(query.dim() == 4, "query must be (batch, heads, length, size), got ", query.sizes());
    TORCH_CHECK(query.sizes() == key.sizes() && query.sizes() == value.sizes(), "query, key and value must have one shape");
    TORCH_CHECK(
        query.scalar_type() == at::kFloat || query.scalar_type() == at::kBFloat16,
        "the kernel takes float32 and bfloat16, got ", query.scalar_type());
    TORCH_CHECK(
        key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type(),
        "query, key and value must have one dtype");
    for (const Tensor& tensor : {query, key, value}) {
      TORCH_CHECK(tensor.is_cpu(), "the kernel runs on CPUs, got a tensor on ", tensor.device());
    }
    TORCH_CHECK(kernel_size > 0 && kernel_size % 2 == 1, "kernel_size must be odd, got ", kernel_size);
    TORCH_CHECK(rate >= 0 && rate < 1, "dropout must lie in [0, 1), got ", rate);
    batch = query.size(0), heads = query.size(1), length = query.size(2), size = query.size(3);
    padded_length = round_up(length, PANEL);
    padded_size = round_up(size, STEP);
    blocks = (length + QUERIES - 1) / QUERIES;

    const Tensor none = at::zeros({1, 1, 1, kernel_size}, query.options().dtype(at::kFloat));
    query_slots = broadcast(query_slots_.value_or(none), {batch, heads, length, kernel_size}, "query_slots");
    if (key_slots_) {
      key_slots = broadcast(*key_slots_, {batch, heads, length, kernel_size}, "key_slots").contiguous();
    }
    if (mask_) {
      mask = broadcast(*mask_, {batch, heads, length, length}, "mask");
    }
    if (borders_) {
      TORCH_CHECK(borders_->scalar_type() == at::kLong, "borders must be int64, got ", borders_->scalar_type());
      TORCH_CHECK(borders_->is_cpu(), "borders must lie on the CPU");
      borders = borders_->expand({batch, length, 2}).contiguous();
    }
    terms.length = length;
    terms.slots = kernel_size;
    terms.scale = static_cast<float>(scale);
    terms.window = window;
    dropout.rate = static_cast<float>(rate);
    TORCH_CHECK(seed.numel() == 1 && seed.scalar_type() == at::kLong, "seed must be one int64");
    dropout.seed = static_cast<uint64_t>(seed.item<int64_t>());
  }

  // Rows of numbers that lie side by side.
  static Tensor dense(const Tensor& tensor) {
    return tensor.size(-1) == 1 || tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
  }

  static Tensor broadcast(const Tensor& tensor, at::IntArrayRef shape, const char* name) {
    TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == at::kFloat, name, " must be float32 on the CPU");
    const Tensor expanded = tensor.expand(shape);
    return expanded.size(-1) == 1 || expanded.stride(-1) == 1 ? expanded : expanded.contiguous();
  }

  template <typename S>
  const S* rows(const Tensor& tensor, int64_t text, int64_t head) const {
    return tensor.const_data_ptr<S>() + text * tensor.stride(0) + head * tensor.stride(1);
  }
};

// The terms of one text and head after another, in the memory of one thread.
class HeadTerms {
 public:
  explicit HeadTerms(const Problem& problem)
      : problem_(problem),
        left_(problem.padded_length),
        right_(problem.padded_length),
        near_(problem.padded_length) {}

  Terms of(int64_t text, int64_t head) {
    Terms terms = problem_.terms;
    terms.query_slots = problem_.rows<float>(problem_.query_slots, text, head);
    terms.query_stride = problem_.query_slots.stride(2);
    std::fill(near_.get(), near_.get() + terms.length, 0.f);
    if (problem_.mask.defined()) {
      const float* mask = problem_.rows<float>(problem_.mask, text, head);
      if (problem_.mask.stride(2) == 0) {
        std::copy(mask, mask + terms.length, near_.get());
      } else {
        terms.mask = mask;
        terms.mask_stride = problem_.mask.stride(2);
      }
    }
    std::copy(near_.get(), near_.get() + terms.length, left_.get());
    std::copy(near_.get(), near_.get() + terms.length, right_.get());
    if (problem_.key_slots.defined()) {
      terms.key_slots = problem_.rows<float>(problem_.key_slots, text, head);
      for (int64_t j = 0; j < terms.length; j++) {
        left_.get()[j] += terms.key_slots[j * terms.slots + terms.slots - 1];
        right_.get()[j] += terms.key_slots[j * terms.slots];
      }
    }
    if (problem_.borders.defined()) {
      terms.borders = problem_.borders.const_data_ptr<int64_t>() + text * 2 * terms.length;
    }
    terms.left = left_.get();
    terms.right = right_.get();
    terms.near = near_.get();
    return terms;
  }

 private:
  const Problem& problem_;
  Buffer<float> left_, right_, near_;
};

// Calls work(first key, keys that exist, keys with padding) for the tiles that the rows [start, start + rows) attend.
template <typename Work>
inline void for_tiles(const Terms& terms, int64_t start, int64_t rows, const Work& work) {
  int64_t begin = terms.length, end = 0;
  for (int64_t i = start; i < start + rows; i++) {
    begin = std::min(begin, terms.first_key(i));
    end = std::max(end, terms.end_key(i));
  }
  for (int64_t first = begin / PANEL * PANEL; first < end; first += KEYS) {
    const int64_t count = std::min(KEYS, end - first);
    work(first, count, round_up(count, PANEL));
  }
}

// out (rows, keys) = left (rows, size) times panels of keys.
template <typename S>
inline void panel_products(
    int64_t rows, int64_t keys, int64_t size, const S* left, const S* panels, int64_t first, float* out) {
  for (int64_t j = 0; j < keys; j += PANEL) {
    product(rows, PANEL, size, left, size, panels + (first + j) * size, PANEL, out + j, KEYS, false);
  }
}

// One block of queries against all its keys. Output rows have stride `stride`.
template <typename S>
class ForwardBlock {
 public:
  explicit ForwardBlock(int64_t size, int64_t padded_size)
      : size_(size),
        padded_size_(padded_size),
        query_(QUERIES * padded_size),
        scores_(QUERIES * KEYS),
        narrow_(std::is_same_v<S, float> ? 0 : QUERIES * KEYS),
        sums_(QUERIES * padded_size),
        keep_(KEYS) {}

  void run(
      const Terms& terms, const Dropout& dropout, int64_t n, const S* query, int64_t query_stride, int64_t start,
      int64_t rows, const S* keys, const S* values, S* output, int64_t stride, float* normalisers) {
    const int64_t padded_rows = round_up(rows, STEP);
    copy_rows(query + start * query_stride, query_stride, rows, size_, padded_rows, padded_size_, query_.get());
    float highest[QUERIES], total[QUERIES];
    std::fill(highest, highest + QUERIES, HIDDEN);
    std::fill(total, total + QUERIES, 0.f);
    // Rows that only pad must hold numbers: their products are not used, but cost time if they are not normal.
    std::fill(sums_.get(), sums_.get() + padded_rows * padded_size_, 0.f);
    S* weights = weights_();
    for_tiles(terms, start, rows, [&](int64_t first, int64_t count, int64_t padded) {
      panel_products(padded_rows, padded, padded_size_, query_.get(), keys, first, scores_.get());
      for (int64_t r = 0; r < rows; r++) {
        float* row = scores_.get() + r * KEYS;
        const float top = finish_row(row, terms, start + r, first, count, padded);
        if (top == HIDDEN) {
          std::fill(weights + r * KEYS, weights + r * KEYS + padded, S(0));
          continue;
        }
        // Not std::max, which would lose a NaN. An infinite score spoils its row, as it does everywhere.
        const float higher = top > highest[r] || std::isnan(top) ? top : highest[r];
        const float* keep = nullptr;
        if (dropout.is_on()) {
          dropout.row(keep_.get(), n, start + r, first, padded);
          keep = keep_.get();
        }
        float added = exponentiate(row, padded, higher, keep, weights + r * KEYS);
        if (!std::isfinite(higher)) {
          added = std::numeric_limits<float>::quiet_NaN();
        }
        const float shrink = std::exp(highest[r] - higher);
        if (total[r] != 0 && shrink != 1) {
          at::vec::map([shrink](Vec x) { return x * Vec(shrink); }, sums(r), sums(r), padded_size_);
        }
        total[r] = total[r] * shrink + added;
        highest[r] = higher;
      }
      product(
          padded_rows, padded_size_, padded, weights, KEYS, values + first * padded_size_, padded_size_, sums_.get(),
          padded_size_, true);
    });
    for (int64_t r = 0; r < rows; r++) {
      const float inverse = total[r] == 0 ? 0 : 1 / total[r];
      for (int64_t c = 0; c < size_; c++) {
        output[(start + r) * stride + c] = static_cast<S>(sums(r)[c] * inverse);
      }
      // Apart, as a sum with the score of a row whose keys are all masked would lose the logarithm. A row without keys
      // has no weights in the backward pass either.
      normalisers[2 * (start + r)] = total[r] == 0 ? std::numeric_limits<float>::infinity() : highest[r];
      normalisers[2 * (start + r) + 1] = total[r] == 0 ? 0 : std::log(total[r]);
    }
  }

 private:
  float* sums(int64_t row) {
    return sums_.get() + row * padded_size_;
  }
  S* weights_() {
    if constexpr (std::is_same_v<S, float>) {
      return scores_.get();
    } else {
      return narrow_.get();
    }
  }

  int64_t size_, padded_size_;
  Buffer<S> query_;
  Buffer<float> scores_;
  Buffer<S> narrow_;
  Buffer<float> sums_;
  Buffer<float> keep_;
};

// output (B, L, H, D), normalisers (B, H, L, 2): the highest score of each row, the logarithm of the sum of exponents
template <typename S>
void forward(const Problem& p, Tensor& output, Tensor& normalisers) {
  can_generate<S>();
  at::parallel_for(0, p.batch * p.heads * p.blocks, 1, [&](int64_t begin, int64_t end) {
    Buffer<S> keys(p.padded_length * p.padded_size), values(p.padded_length * p.padded_size);
    HeadTerms all(p);
    Terms terms;
    ForwardBlock<S> block(p.size, p.padded_size);
    int64_t packed = -1;
    for (int64_t task = begin; task < end; task++) {
      const int64_t n = task / p.blocks, text = n / p.heads, head = n % p.heads;
      if (n != packed) {
        terms = all.of(text, head);
        pack_transposed(
            p.rows<S>(p.key, text, head), p.key.stride(2), p.length, p.size, p.padded_length, p.padded_size,
            keys.get());
        pack_rows(
            p.rows<S>(p.value, text, head), p.value.stride(2), p.length, p.size, p.padded_length, p.padded_size,
            values.get());
        packed = n;
      }
      const int64_t start = task % p.blocks * QUERIES;
      block.run(
          terms, p.dropout, n, p.rows<S>(p.query, text, head), p.query.stride(2), start,
          std::min(QUERIES, p.length - start), keys.get(), values.get(),
          output.mutable_data_ptr<S>() + (text * p.length * p.heads + head) * p.size, p.heads * p.size,
          normalisers.mutable_data_ptr<float>() + 2 * n * p.length);
    }
    end_products();
  });
}

// Gradients, as the operator returns them: of query, key and value (B, L, H, D), of the slots (B, H, L, R) float32.
struct Gradients {
  Tensor query, key, value, query_slots, key_slots;
};

// One text and head: all blocks of queries, with the gradients of keys and values summed up in float32.
template <typename S>
class BackwardHead {
 public:
  explicit BackwardHead(const Problem& p)
      : p_(p),
        terms_of_(p),
        keys_(whole()),
        key_panels_(whole()),
        value_panels_(whole()),
        key_sums_(whole()),
        value_sums_(whole()),
        left_(p.padded_length),
        right_(p.padded_length),
        query_(QUERIES * p.padded_size),
        query_packed_(QUERIES * p.padded_size),
        outer_(QUERIES * p.padded_size),
        outer_packed_(QUERIES * p.padded_size),
        query_sums_(QUERIES * p.padded_size),
        scores_(QUERIES * KEYS),
        gradients_(QUERIES * KEYS),
        narrow_weights_(NARROW ? QUERIES * KEYS : 0),
        narrow_gradients_(NARROW ? QUERIES * KEYS : 0),
        turned_weights_(QUERIES * KEYS),
        turned_gradients_(QUERIES * KEYS),
        keep_(KEYS) {}

  // `outer` the gradient of the output, and `output`, both (B, L, H, D) contiguous.
  void run(int64_t n, const Tensor& outer, const Tensor& output, const Tensor& normalisers, Gradients& to) {
    const int64_t text = n / p_.heads, head = n % p_.heads;
    const Terms terms = terms_of_.of(text, head);
    pack(pack_rows<S>, p_.key, text, head, keys_.get());
    pack(pack_transposed<S>, p_.key, text, head, key_panels_.get());
    pack(pack_transposed<S>, p_.value, text, head, value_panels_.get());
    for (Buffer<float>* buffer : {&key_sums_, &value_sums_}) {
      std::fill(buffer->get(), buffer->get() + whole(), 0.f);
    }
    const int64_t offset = (text * p_.length * p_.heads + head) * p_.size, stride = p_.heads * p_.size;
    float* query_slots = to.query_slots.mutable_data_ptr<float>() + n * p_.length * terms.slots;
    std::fill(query_slots, query_slots + p_.length * terms.slots, 0.f);
    float* key_slots = nullptr;
    if (terms.key_slots) {
      key_slots = to.key_slots.mutable_data_ptr<float>() + n * p_.length * terms.slots;
      std::fill(key_slots, key_slots + p_.length * terms.slots, 0.f);
      std::fill(left_.get(), left_.get() + p_.padded_length, 0.f);
      std::fill(right_.get(), right_.get() + p_.padded_length, 0.f);
    }
    for (int64_t start = 0; start < p_.length; start += QUERIES) {
      block(
          terms, n, p_.rows<S>(p_.query, text, head), start, outer.const_data_ptr<S>() + offset,
          output.const_data_ptr<S>() + offset, stride, normalisers.const_data_ptr<float>() + 2 * n * p_.length,
          query_slots, key_slots);
      const int64_t rows = std::min(QUERIES, p_.length - start);
      store(query_sums_.get(), rows, terms.scale, to.query.mutable_data_ptr<S>() + offset + start * stride, stride);
    }
    store(key_sums_.get(), p_.length, terms.scale, to.key.mutable_data_ptr<S>() + offset, stride);
    store(value_sums_.get(), p_.length, 1, to.value.mutable_data_ptr<S>() + offset, stride);
    if (key_slots) {
      for (int64_t j = 0; j < p_.length; j++) {
        key_slots[j * terms.slots + terms.slots - 1] += left_.get()[j];
        key_slots[j * terms.slots] += right_.get()[j];
      }
    }
  }

 private:
  static constexpr bool NARROW = !std::is_same_v<S, float>;

  int64_t whole() const {
    return p_.padded_length * p_.padded_size;
  }

  template <typename Packing>
  void pack(const Packing& packing, const Tensor& tensor, int64_t text, int64_t head, S* out) {
    packing(
        p_.rows<S>(tensor, text, head), tensor.stride(2), p_.length, p_.size, p_.padded_length, p_.padded_size, out);
  }

  void store(const float* sums, int64_t rows, float scale, S* out, int64_t stride) {
    for (int64_t i = 0; i < rows; i++) {
      for (int64_t c = 0; c < p_.size; c++) {
        out[i * stride + c] = static_cast<S>(sums[i * p_.padded_size + c] * scale);
      }
    }
  }

  // For float32 the narrow tiles are the tiles themselves.
  S* weights() {
    if constexpr (NARROW) {
      return narrow_weights_.get();
    } else {
      return scores_.get();
    }
  }
  S* score_gradients() {
    if constexpr (NARROW) {
      return narrow_gradients_.get();
    } else {
      return gradients_.get();
    }
  }

  void block(
      const Terms& terms, int64_t n, const S* query, int64_t start, const S* outer, const S* output, int64_t stride,
      const float* normalisers, float* query_slots, float* key_slots) {
    const int64_t rows = std::min(QUERIES, p_.length - start), padded_rows = round_up(rows, STEP);
    const int64_t size = p_.padded_size, query_stride = p_.query.stride(2);
    const S* q = query + start * query_stride;
    const S* g = outer + start * stride;
    copy_rows(q, query_stride, rows, p_.size, padded_rows, size, query_.get());
    pack_rows(q, query_stride, rows, p_.size, padded_rows, size, query_packed_.get());
    copy_rows(g, stride, rows, p_.size, padded_rows, size, outer_.get());
    pack_rows(g, stride, rows, p_.size, padded_rows, size, outer_packed_.get());
    std::fill(query_sums_.get(), query_sums_.get() + padded_rows * size, 0.f);
    float means[QUERIES];
    for (int64_t r = 0; r < rows; r++) {
      means[r] = 0;
      for (int64_t c = 0; c < p_.size; c++) {
        means[r] += static_cast<float>(g[r * stride + c]) * static_cast<float>(output[(start + r) * stride + c]);
      }
    }
    for_tiles(terms, start, rows, [&](int64_t first, int64_t count, int64_t padded) {
      panel_products(padded_rows, padded, size, query_.get(), key_panels_.get(), first, scores_.get());
      panel_products(padded_rows, padded, size, outer_.get(), value_panels_.get(), first, gradients_.get());
      for (int64_t r = 0; r < padded_rows; r++) {
        if (r >= rows) {
          std::fill(weights() + r * KEYS, weights() + r * KEYS + padded, S(0));
          std::fill(score_gradients() + r * KEYS, score_gradients() + r * KEYS + padded, S(0));
          continue;
        }
        row(terms, n, start + r, r, first, count, padded, normalisers + 2 * (start + r), means[r]);
        add_slot_gradients(
            gradients_.get() + r * KEYS, terms, start + r, first, count, query_slots + (start + r) * terms.slots,
            key_slots, left_.get(), right_.get());
      }
      transpose(weights(), KEYS, padded_rows, padded, turned_weights_.get(), QUERIES);
      transpose(score_gradients(), KEYS, padded_rows, padded, turned_gradients_.get(), QUERIES);
      product(
          padded, size, padded_rows, turned_weights_.get(), QUERIES, outer_packed_.get(), size,
          value_sums_.get() + first * size, size, true);
      product(
          padded, size, padded_rows, turned_gradients_.get(), QUERIES, query_packed_.get(), size,
          key_sums_.get() + first * size, size, true);
      product(
          padded_rows, size, padded, score_gradients(), KEYS, keys_.get() + first * size, size, query_sums_.get(), size,
          true);
    });
  }

  void row(
      const Terms& terms, int64_t n, int64_t i, int64_t r, int64_t first, int64_t count, int64_t padded,
      const float* normalisers, float mean) {
    float* scores = scores_.get() + r * KEYS;
    finish_row(scores, terms, i, first, count, padded);
    const float* keep = nullptr;
    if (p_.dropout.is_on()) {
      p_.dropout.row(keep_.get(), n, i, first, padded);
      keep = keep_.get();
    }
    differentiate(
        scores, gradients_.get() + r * KEYS, padded, normalisers, mean, keep, weights() + r * KEYS,
        score_gradients() + r * KEYS);
    if (std::isnan(normalisers[0] + normalisers[1])) {
      // The fast exponential turns NaN into a number.
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::fill(weights() + r * KEYS, weights() + r * KEYS + padded, static_cast<S>(nan));
    }
  }

  const Problem& p_;
  HeadTerms terms_of_;
  Buffer<S> keys_, key_panels_, value_panels_;
  Buffer<float> key_sums_, value_sums_, left_, right_;
  Buffer<S> query_, query_packed_, outer_, outer_packed_;
  Buffer<float> query_sums_, scores_, gradients_;
  Buffer<S> narrow_weights_, narrow_gradients_, turned_weights_, turned_gradients_;
  Buffer<float> keep_;
};

template <typename S>
void backward(
    const Problem& p, const Tensor& outer, const Tensor& output, const Tensor& normalisers, Gradients& gradients) {
  can_generate<S>();
  at::parallel_for(0, p.batch * p.heads, 1, [&](int64_t begin, int64_t end) {
    BackwardHead<S> head(p);
    for (int64_t n = begin; n < end; n++) {
      head.run(n, outer, output, normalisers, gradients);
    }
    end_products();
  });
}

std::tuple<Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& query_slots,
    const std::optional<Tensor>& key_slots, const std::optional<Tensor>& mask, const std::optional<Tensor>& borders,
    int64_t kernel_size, bool window, double scale, double dropout, const Tensor& seed) {
  const Problem p(
      query, key, value, query_slots, key_slots, mask, borders, kernel_size, window, scale, dropout, seed);
  Tensor output = at::empty({p.batch, p.length, p.heads, p.size}, query.options());
  Tensor normalisers = at::empty({p.batch, p.heads, p.length, 2}, query.options().dtype(at::kFloat));
  if (output.numel() == 0) {
    return {output, normalisers};
  }
  if (query.scalar_type() == at::kFloat) {
    forward<float>(p, output, normalisers);
  } else {
    forward<BFloat16>(p, output, normalisers);
  }
  return {output, normalisers};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& outer, const Tensor& output, const Tensor& normalisers, const Tensor& query, const Tensor& key,
    const Tensor& value, const std::optional<Tensor>& query_slots, const std::optional<Tensor>& key_slots,
    const std::optional<Tensor>& mask, const std::optional<Tensor>& borders, int64_t kernel_size, bool window,
    double scale, double dropout, const Tensor& seed) {
  const Problem p(
      query, key, value, query_slots, key_slots, mask, borders, kernel_size, window, scale, dropout, seed);
  TORCH_CHECK(
      outer.sizes() == output.sizes() && output.sizes() == at::IntArrayRef({p.batch, p.length, p.heads, p.size}),
      "output and its gradient must be (batch, length, heads, size)");
  TORCH_CHECK(
      outer.scalar_type() == query.scalar_type() && output.scalar_type() == query.scalar_type(),
      "output and its gradient must have the dtype of the query");
  TORCH_CHECK(
      normalisers.sizes() == at::IntArrayRef({p.batch, p.heads, p.length, 2}) && normalisers.scalar_type() == at::kFloat,
      "normalisers must be (batch, heads, length, 2) float32");
  const auto like_output = [&] { return at::empty(output.sizes(), output.options()); };
  Gradients gradients = {
      like_output(), like_output(), like_output(),
      at::empty({p.batch, p.heads, p.length, kernel_size}, normalisers.options()),
      at::empty({p.batch, p.heads, key_slots ? p.length : 0, kernel_size}, normalisers.options())};
  if (output.numel() > 0) {
    if (query.scalar_type() == at::kFloat) {
      backward<float>(p, outer.contiguous(), output.contiguous(), normalisers.contiguous(), gradients);
    } else {
      backward<BFloat16>(p, outer.contiguous(), output.contiguous(), normalisers.contiguous(), gradients);
    }
  }
  return {gradients.query, gradients.key, gradients.value, gradients.query_slots, gradients.key_slots};
}

}  // namespace composite

// The build names the library, so that builds of different kinds can live in one process. The macros of torch take the
// name as it stands, hence one more step.
#define DEFINE_LIBRARY(name, library) TORCH_LIBRARY(name, library)
#define IMPLEMENT_LIBRARY(name, library) TORCH_LIBRARY_IMPL(name, CPU, library)
#define TERMS                                                                                               \
  "Tensor query, Tensor key, Tensor value, Tensor? query_slots, Tensor? key_slots, Tensor? mask, "          \
  "Tensor? borders, int kernel_size, bool window, float scale, float dropout, Tensor seed) -> "

DEFINE_LIBRARY(COMPOSITE_LIBRARY, library) {
  library.def("attention(" TERMS "(Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor outer, Tensor output, Tensor normalisers, " TERMS
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
}

IMPLEMENT_LIBRARY(COMPOSITE_LIBRARY, library) {
  library.impl("attention", &composite::attention);
  library.impl("attention_backward", &composite::attention_backward);
}
