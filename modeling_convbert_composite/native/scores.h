// Copyright 2026 The convbert-composite authors. Licensed under the Apache License, Version 2.0.
//
// One row of scores: products become scores with all terms, scores become weights, and back.
//
//   score[i, j] = product * scale + query_slots[i, slot(j - i)] + key_slots[j, slot(i - j)] + mask[i, j]
//   slot(n) = clip(n, -K, K) + K
//
// Up to K tokens from the query each key has a slot of its own; farther left and farther right there is one slot for
// all, so that a row is three stretches: left (one constant), near (2K - 1 slots), right (one constant).

#pragma once

#include "matrices.h"

#include <ATen/cpu/vec/functional.h>

#include <algorithm>
#include <cmath>

namespace composite {

// Keys that are not there; and keys beyond a window, which a row attends only if all others are masked.
constexpr float HIDDEN = -std::numeric_limits<float>::infinity();
constexpr float BEYOND = -std::numeric_limits<float>::max() / 2;

// The terms of one text and head.
struct Terms {
  int64_t length = 0;
  int64_t slots = 1;                   // 2K + 1
  float scale = 1;
  const float* query_slots = nullptr;  // row i at i * query_stride; one row for all if that is 0
  int64_t query_stride = 0;
  const float* key_slots = nullptr;    // (length, slots), or none
  const float* mask = nullptr;         // row i at i * mask_stride, or none; what all rows share lies in `near`
  int64_t mask_stride = 0;
  const int64_t* borders = nullptr;    // (length, 2): the keys of row i are those from first up to second, or none
  bool window = false;                 // keys farther than K are attended only if all others are masked
  const float* left = nullptr;         // by key: its mask and its slot for queries far to its right ...
  const float* right = nullptr;        // ... and far to its left
  const float* near = nullptr;         // by key: its mask

  int64_t half_width() const {
    return slots / 2;
  }
  int64_t first_key(int64_t i) const {
    return borders ? std::clamp<int64_t>(borders[2 * i], 0, length) : 0;
  }
  int64_t end_key(int64_t i) const {
    return borders ? std::clamp<int64_t>(borders[2 * i + 1], 0, length) : length;
  }
};

// A row's stretches within the keys [first, first + count), counted from `first`: all of its keys in [begin, end),
// those that get terms in [left, right), near ones in [near_begin, near_end).
struct Stretches {
  int64_t begin, left, near_begin, near_end, right, end;

  Stretches(const Terms& terms, int64_t i, int64_t first, int64_t count) {
    const int64_t place = i - first, half_width = terms.half_width();
    begin = std::clamp<int64_t>(terms.first_key(i) - first, 0, count);
    end = std::clamp<int64_t>(terms.end_key(i) - first, begin, count);
    left = terms.window ? std::clamp<int64_t>(place - half_width, begin, end) : begin;
    right = terms.window ? std::clamp<int64_t>(place + half_width + 1, left, end) : end;
    // With a single slot all keys are on the left.
    near_begin = half_width ? std::clamp<int64_t>(place - half_width + 1, left, right) : right;
    near_end = half_width ? std::clamp<int64_t>(place + half_width, near_begin, right) : right;
  }
};

// x[j] = x[j] * scale + constant + by_key[j]
inline void add_constant(float* x, int64_t count, float scale, float constant, const float* by_key) {
  const Vec scales(scale), constants(constant);
  int64_t j = 0;
  for (; j + Vec::size() <= count; j += Vec::size()) {
    at::vec::fmadd(Vec::loadu(x + j), scales, constants + Vec::loadu(by_key + j)).store(x + j);
  }
  if (j < count) {
    const int64_t rest = count - j;
    at::vec::fmadd(Vec::loadu(x + j, rest), scales, constants + Vec::loadu(by_key + j, rest)).store(x + j, rest);
  }
}

// Products of row i with the keys [first, first + padded) -> scores, HIDDEN where there is no key. Only the first
// `count` of `padded` keys exist. Returns the highest score; NaN if there is one.
inline float finish_row(float* row, const Terms& terms, int64_t i, int64_t first, int64_t count, int64_t padded) {
  const Stretches at(terms, i, first, count);
  std::fill(row, row + at.begin, HIDDEN);
  std::fill(row + at.end, row + padded, HIDDEN);
  if (at.begin == at.end) {
    return HIDDEN;
  }
  const float* slots = terms.query_slots + i * terms.query_stride;
  const int64_t half_width = terms.half_width();
  add_constant(row + at.left, at.near_begin - at.left, terms.scale, slots[0], terms.left + first + at.left);
  const int64_t shift = first - i + half_width;  // slot of the key at 0
  for (int64_t j = at.near_begin; j < at.near_end; j++) {
    row[j] = row[j] * terms.scale + slots[j + shift] + terms.near[first + j];
  }
  if (terms.key_slots) {
    for (int64_t j = at.near_begin; j < at.near_end; j++) {
      row[j] += terms.key_slots[(first + j) * terms.slots + 2 * half_width - (j + shift)];
    }
  }
  add_constant(
      row + at.near_end, at.right - at.near_end, terms.scale, slots[terms.slots - 1],
      terms.right + first + at.near_end);
  add_constant(row + at.begin, at.left - at.begin, 0, BEYOND, terms.near + first + at.begin);
  add_constant(row + at.right, at.end - at.right, 0, BEYOND, terms.near + first + at.right);
  if (terms.mask) {
    add_constant(row + at.begin, at.end - at.begin, 1, 0, terms.mask + i * terms.mask_stride + first + at.begin);
  }
  Vec highest(HIDDEN);
  for (int64_t j = 0; j < padded; j += Vec::size()) {
    highest = at::vec::maximum(highest, Vec::loadu(row + j));
  }
  return at::vec::vec_reduce_all<float>(
      [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); }, highest);
}

template <typename S>
inline void store_two(S* out, const Vec& first, const Vec& second) {
  if constexpr (std::is_same_v<S, float>) {
    first.store(out);
    second.store(out + Vec::size());
  } else {
    at::vec::convert_from_float<S>(first, second).store(out);
  }
}

inline float sum(const float* x, int64_t count) {
  Vec total(0.f);
  int64_t j = 0;
  for (; j + Vec::size() <= count; j += Vec::size()) {
    total = total + Vec::loadu(x + j);
  }
  if (j < count) {
    total = total + Vec::loadu(x + j, count - j);
  }
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, total);
}

// Which weights a dropout keeps: a hash of the seed, the row and the key, so that the backward pass finds the same
// ones, in whatever order and on however many threads.
struct Dropout {
  float rate = 0;
  uint64_t seed = 0;

  bool is_on() const {
    return rate > 0;
  }

  // keep[j] = 0, or what keeps the mean: for the keys [first, first + count) of row i of the n-th text and head.
  void row(float* keep, int64_t n, int64_t i, int64_t first, int64_t count) const {
    uint64_t state = seed ^ (static_cast<uint64_t>(n) * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(i) + 1);
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    const uint32_t key = static_cast<uint32_t>(state ^ (state >> 31));
    const uint32_t threshold = static_cast<uint32_t>(static_cast<double>(rate) * 4294967296.0);
    const float kept = 1 / (1 - rate);
    const uint32_t start = static_cast<uint32_t>(first);
    for (int64_t j = 0; j < count; j++) {
      uint32_t hash = (start + static_cast<uint32_t>(j)) * 0x9E3779B1u ^ key;
      hash = (hash ^ (hash >> 16)) * 0x85EBCA6Bu;
      hash = (hash ^ (hash >> 13)) * 0xC2B2AE35u;
      hash ^= hash >> 16;
      keep[j] = hash >= threshold ? kept : 0.f;
    }
  }
};

// weights[j] = exp(scores[j] - highest), times keep[j] if given; returns the sum before that. Multiples of two vectors.
template <typename S>
inline float exponentiate(const float* scores, int64_t count, float highest, const float* keep, S* weights) {
  const Vec top(highest);
  Vec total(0.f);
  for (int64_t j = 0; j < count; j += 2 * Vec::size()) {
    Vec first = (Vec::loadu(scores + j) - top).exp_u20();
    Vec second = (Vec::loadu(scores + j + Vec::size()) - top).exp_u20();
    total = total + first + second;
    if (keep) {
      first = first * Vec::loadu(keep + j);
      second = second * Vec::loadu(keep + j + Vec::size());
    }
    store_two(weights + j, first, second);
  }
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, total);
}

// Scores and gradients of the weights -> weights after dropout, and gradients of the scores, these also in float32 in
// place of the gradients of the weights. `normalisers` the highest score and
// the logarithm of the sum of exponents; `mean` the row's sum of weight times
// gradient. `weights` may be `scores`, and `narrow` may be `gradients`. Multiples of two vectors.
template <typename S>
inline void differentiate(
    const float* scores, float* gradients, int64_t count, const float* normalisers, float mean, const float* keep, S* weights,
    S* narrow) {
  const Vec highest(normalisers[0]), logarithm(normalisers[1]), means(mean);
  for (int64_t j = 0; j < count; j += 2 * Vec::size()) {
    Vec weight[2], gradient[2];
    for (int64_t part = 0; part < 2; part++) {
      const int64_t at = j + part * Vec::size();
      weight[part] = (Vec::loadu(scores + at) - highest - logarithm).exp_u20();
      gradient[part] = Vec::loadu(gradients + at);
      const Vec before = weight[part];
      if (keep) {
        const Vec kept = Vec::loadu(keep + at);
        weight[part] = before * kept;
        gradient[part] = gradient[part] * kept;
      }
      gradient[part] = before * (gradient[part] - means);
    }
    store_two(weights + j, weight[0], weight[1]);
    store_two(gradients + j, gradient[0], gradient[1]);
    if constexpr (!std::is_same_v<S, float>) {
      store_two(narrow + j, gradient[0], gradient[1]);
    }
  }
}

// Adds the gradients of row i's scores, for the keys [first, first + count), to those of the slots: the row's own in
// `query_slots` (slots,), the keys' in `key_slots` (length, slots) and, for far queries, `left` and `right` (length,).
inline void add_slot_gradients(
    const float* row, const Terms& terms, int64_t i, int64_t first, int64_t count, float* query_slots,
    float* key_slots, float* left, float* right) {
  const Stretches at(terms, i, first, count);
  const int64_t shift = first - i + terms.half_width();
  query_slots[0] += sum(row + at.left, at.near_begin - at.left);
  query_slots[terms.slots - 1] += sum(row + at.near_end, at.right - at.near_end);
  for (int64_t j = at.near_begin; j < at.near_end; j++) {
    query_slots[j + shift] += row[j];
  }
  if (key_slots) {
    add_constant(left + first + at.left, at.near_begin - at.left, 1, 0, row + at.left);
    add_constant(right + first + at.near_end, at.right - at.near_end, 1, 0, row + at.near_end);
    for (int64_t j = at.near_begin; j < at.near_end; j++) {
      key_slots[(first + j) * terms.slots + 2 * terms.half_width() - (j + shift)] += row[j];
    }
  }
}

}  // namespace composite
