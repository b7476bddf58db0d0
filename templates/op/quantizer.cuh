// SPDX-License-Identifier: Apache-2.0
// What results of 8 and 4 bits are divided by: a number that the launch gives, or one that follows from the
// largest result of a row or block; and where the scales of blocks go.
namespace normjit {

enum : bool {
  kScalesTensor = Quantization::chosen == Quantization::tensor,
  kScalesRows = Quantization::chosen == Quantization::row,
  kScalesBlocks = Quantization::chosen >= Quantization::block_16,
  kWritesAlso = Also::chosen != Also::none,
  kHasMoreResults = kScalesBlocks || kWritesAlso || kWritesAmax
};
// Columns that share a scale, and how many such blocks a row has.
enum : int {
  kBlock = kScalesBlocks
               ? 16 << (static_cast<int>(Quantization::chosen) - static_cast<int>(Quantization::block_16))
               : kColumns,
  kBlocks = kColumns / kBlock
};

NJ_DEVICE bool is_infinite(float magnitude) { return magnitude > 0x1.fffffep127f; }

// What results are divided by: the scale as it is written, what they are multiplied by, and the divisor,
// which is the scale again, or 0 where that is infinite. Before the scale of a row or block is known, `scale`
// is the number that the launch gives for it.
struct Quantizer {
  float scale, inverse, divisor;
};
// With a scale that the caller gives.
NJ_DEVICE Quantizer quantizer_of_tensor(float given, bool inverse) {
  return {given, inverse ? given : 1 / given, 0};
}
// With one that follows from the results. Finite ones are normal numbers, and so are their inverses.
NJ_DEVICE Quantizer quantizer_of_scale(float scale) {
  const bool infinite = is_infinite(scale);
  return {scale, infinite ? 0 : hw::reciprocal(scale), infinite ? 0 : scale};
}
// A quotient by a number whose inverse is known, rounded once where it and all of them are normal numbers.
NJ_DEVICE float divided(float number, float by, float inverse) {
  const float about = number * inverse;
  return is_infinite(fabsf(about)) ? about : hw::fma(-hw::fma(about, by, -number), inverse, about);
}
NJ_DEVICE float over(float number, float most) { return divided(number, most, 1 / most); }
// The largest number of a type of results.
template <class T>
constexpr float kMost = kSame<T, E4M3>   ? 448
                        : kSame<T, E5M2> ? 57344
                        : kSame<T, E2M1> ? 6
                                         : 127;
// For the results of a row, of type T, whose largest is this. A bound that is NaN bounds nothing.
template <class T>
NJ_DEVICE Quantizer quantizer_of_row(float magnitude) {
  constexpr float kLeast = kSame<T, S8> ? 0x1p-23f : 1 / (512 * kMost<T>);
  return quantizer_of_scale(hw::max_nan(over(magnitude, kMost<T>), kLeast));
}
NJ_DEVICE float bounded(float magnitude, float bound) { return magnitude > bound ? bound : magnitude; }
template <class T>
NJ_DEVICE Quantizer quantizer_of_row(Largest largest, const Quantizer& given) {
  return quantizer_of_row<T>(kHasUpperBound ? bounded(largest.magnitude, given.scale) : largest.magnitude);
}
// Likewise, with the scale rounded up to a power of two. In e8m0 the largest is 2^127.
NJ_DEVICE Quantizer quantizer_of_power(float scale, bool in_e8m0) {
  unsigned bits = (bits_of(scale) + 0x7fffffu) & 0x7f800000u;
  if (in_e8m0 && bits == 0x7f800000u) bits = 0x7f000000u;
  // Exponents add up to that of 1, twice. 2^-127 is no normal number.
  const unsigned inverse_bits = bits < 0x7f000000u ? 0x7f000000u - bits : in_e8m0 ? 0x400000u : 0;
  if (scale != scale) return {scale, scale, 0};
  return {float_of(bits), float_of(inverse_bits), 0};
}
// For the results of a block whose largest is this, and `most` the largest number of their type.
NJ_DEVICE Quantizer quantizer_of_block(Largest largest, float most, ScaleFormat format,
                                       const Quantizer& given) {
  const float magnitude = largest.magnitude;
  if (format == ScaleFormat::e4m3) {
    const float scale = e4m3_to_f32(narrow<E4M3>(given.scale * (magnitude * (1 / most))).bits & 0x7f);
    return {scale, scale == 0 ? 0 : divided(given.scale, scale, hw::reciprocal(scale)), 0};
  }
  const float scale = over(hw::max_nan(magnitude, 1e-10f), most);
  if (format == ScaleFormat::f32) return quantizer_of_scale(scale);
  return quantizer_of_power(scale, format == ScaleFormat::e8m0);
}
// The byte in which such a scale is stored in e8m0 or e4m3.
NJ_DEVICE unsigned char byte_of_scale(float scale, ScaleFormat format) {
  if (format == ScaleFormat::e4m3) return narrow<E4M3>(scale).bits & 0x7f;
  return static_cast<unsigned char>(bits_of(scale) >> 23);
}
// What the launch gives. (A template, since Operands has only what the spec has.)
template <class Any>
NJ_DEVICE Quantizer quantizer_of(const Any& on) {
  if constexpr (kScalesTensor)
    return quantizer_of_tensor(hw::load<hw::Cache::keep, float>(on.tensor_scale), kInverseScale);
  if constexpr (kHasUpperBound) return {hw::load<hw::Cache::keep, float>(on.upper_bound), 0, 0};
  if constexpr (kScalesBlocks && ScaleFormat::chosen == ScaleFormat::e4m3)
    return {hw::load<hw::Cache::keep, float>(on.global_scale), 0, 0};
  return {};
}

// y over the scale. Times its inverse, rounded twice; or the quotient as it is rounded once: the product,
// less what it is too large by, so that zeros keep their sign. Whole numbers are never divided.
template <class T, bool kDivides>
NJ_DEVICE float quantized(float y, const Quantizer& by) {
  const float about = y * by.inverse;
  if constexpr (!kDivides || kSame<T, S8>) return about;
  return hw::fma(-hw::fma(about, by.divisor, -y), by.inverse, about);
}
NJ_DEVICE Acc quantized(Acc y, const Quantizer& by) {
  constexpr bool kDivides = kScalesRows || (kScalesBlocks && ScaleFormat::chosen == ScaleFormat::f32);
  if constexpr (kScalesTensor || kScalesRows || kScalesBlocks) return quantized<Output, kDivides>(y, by);
  return y;
}

// ---- Scales of blocks ----

// The scales of the blocks of a row, of a type that is known later: where those of all rows are, K for each,
// and which block comes first.
struct Scales {
  void* all;
  ScaleLayout layout;
  long long rows;
  int blocks;
  long long row;
  int first;

  static NJ_METHOD long long up(long long number, int to) { return (number + to - 1) / to * to; }
  // Rows and K with their padding. No place in a tile depends on how many rows there are.
  NJ_METHOD long long padded_rows() const { return layout == ScaleLayout::rows ? rows : up(rows, 4); }
  NJ_METHOD unsigned padded_blocks() const {
    return layout < ScaleLayout::packed_columns ? blocks : static_cast<unsigned>(up(blocks, 4));
  }
  // Where the scale of block k of row r lies, in two parts that are added; spec.h has the layouts.
  NJ_METHOD long long place_of_row(unsigned long long r) const {
    if (layout == ScaleLayout::rows) return r * blocks;
    if (layout == ScaleLayout::columns) return r;
    if (layout == ScaleLayout::packed_columns) return r * 4;
    return r / 128 * (padded_blocks() * 128) + r % 32 * 16 + r % 128 / 32 * 4;
  }
  NJ_METHOD long long place_of_block(unsigned k) const {
    if (layout == ScaleLayout::rows) return k;
    if (layout == ScaleLayout::columns) return k * padded_rows();
    return k / 4 * (layout == ScaleLayout::packed_columns ? padded_rows() * 4 : 512) + k % 4;
  }
  NJ_METHOD long long place(long long r, int k) const { return place_of_row(r) + place_of_block(k); }
  // Stores a scale.
  NJ_METHOD void store(long long place, float scale, ScaleFormat format) const {
    if (format < ScaleFormat::e8m0) {
      hw::store(static_cast<float*>(all) + place, scale);
    } else {
      hw::store(static_cast<unsigned char*>(all) + place, byte_of_scale(scale, format));
    }
  }
};
// Zeros what is beyond K, and with the last row what is beyond the rows. All of so many lanes call this.
NJ_DEVICE void pad_scales(const Scales& scales, ScaleFormat format, int lane, int lanes) {
  const int padded = static_cast<int>(scales.padded_blocks());
#pragma unroll 1
  for (int k = scales.blocks + lane; k < padded; k += lanes)
    scales.store(scales.place(scales.row, k), 0, format);
  if (scales.row + 1 < scales.rows) return;
  if (scales.layout != ScaleLayout::swizzled) {
    const int missing = static_cast<int>(scales.padded_rows() - scales.rows);  // at most three
#pragma unroll 1
    for (int k = lane; k < padded; k += lanes)
#pragma unroll 1
      for (int r = 0; r < missing; ++r) scales.store(scales.place(scales.rows + r, k), 0, format);
    return;
  }
  // The last row's tiles lie one behind the other. In each a row has four scales in a word, beside those of
  // the rows 32, 64 and 96 further on.
  unsigned char* const tiles = static_cast<unsigned char*>(scales.all) + scales.row / 128 * (padded * 128LL);
  const int rows = static_cast<int>(scales.row % 128) + 1;
  const bool whole_words = reinterpret_cast<unsigned long long>(tiles) % 4 == 0;
#pragma unroll 1
  for (int i = lane; i < padded * 8; i += lanes)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i % 32 + j * 32 < rows) continue;
      unsigned char* const four = tiles + i * 16 + j * 4;
      if (whole_words) {
        hw::store(reinterpret_cast<unsigned*>(four), 0u);
      } else {
        for (int k = 0; k < 4; ++k) hw::store(four + k, static_cast<unsigned char>(0));
      }
    }
}

}  // namespace normjit
