// SPDX-License-Identifier: Apache-2.0
// Which operands a quantization has, and where the scales of blocks lie.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "normjit/spec/operands.h"

namespace normjit {
namespace {

std::set<std::string_view> further_operands(std::string_view quantization) {
  const NormSpec spec = parse_spec("rmsnorm/cols=256/bf16/" + std::string(quantization)).value();
  std::set<std::string_view> names;
  for (const OperandRow& row : kOperands)
    if (row.present(spec) && row.operand != Operand::x && row.operand != Operand::y) names.insert(row.name);
  return names;
}

TEST(Operands, OfAQuantization) {
  using Names = std::set<std::string_view>;
  EXPECT_EQ(further_operands("out=e4m3/q=row:ub"), (Names{"upper_bound", "row_scale"}));
  EXPECT_EQ(further_operands("out=e4m3/q=128:p2"), Names{"block_scale"});
  EXPECT_EQ(further_operands("out=e4m3/q=16:e4m3"), (Names{"global_scale", "block_scale"}));
  EXPECT_EQ(further_operands("out=e4m3/q=16:e8m0/also=f16"), (Names{"also", "block_scale"}));
  EXPECT_EQ(further_operands("out=s8/q=tensor/amax"), (Names{"tensor_scale", "amax"}));
  EXPECT_EQ(further_operands("amax"), Names{"amax"});
}

TEST(Operands, OfASpecThatIsNotCanonicalAreTheSame) {
  const NormSpec spec{.columns = 64,
                      .output = DType::e4m3,
                      .quantization = Quantization::tensor,
                      .upper_bound = true,
                      .scale_format = ScaleFormat::e4m3};
  EXPECT_EQ(operands_of(spec), operands_of(canonical(spec)));
}

TEST(Operands, ScalesHaveTheTypeOfTheirFormat) {
  const auto type_of = [](std::string_view quantization) {
    const NormSpec spec = parse_spec("rmsnorm/cols=256/bf16/out=e4m3/" + std::string(quantization)).value();
    return row_of(Operand::block_scale).dtype(spec);
  };
  EXPECT_EQ(type_of("q=128"), DType::f32);
  EXPECT_EQ(type_of("q=64:p2"), DType::f32);
  EXPECT_EQ(type_of("q=32:e8m0:sw"), DType::e8m0);
  EXPECT_EQ(type_of("q=16:e4m3"), DType::e4m3);
  const NormSpec also{.output = DType::e4m3, .quantization = Quantization::row, .also = Also::bf16};
  EXPECT_EQ(row_of(Operand::also).dtype(also), DType::bf16);
}

TEST(Operands, OfFourBitsAreHalfAsMany) {
  const NormSpec spec = parse_spec("rmsnorm/cols=256/bf16/out=e2m1/add/sum/q=16:e4m3/also=bf16").value();
  for (const Operand operand : {Operand::x, Operand::residual, Operand::sum, Operand::also})
    EXPECT_EQ(row_elements(row_of(operand), spec), 256) << row_of(operand).name;
  EXPECT_EQ(row_elements(row_of(Operand::y), spec), 128);
  EXPECT_EQ(elements_of(row_of(Operand::y), spec, 3), 3 * 128);
  EXPECT_EQ(elements_of(row_of(Operand::x), spec, 3), 3 * 256);
}

NormSpec with_scales(std::int64_t blocks, ScaleLayout layout) {
  return {.columns = 32 * blocks,
          .output = DType::e4m3,
          .quantization = Quantization::block_32,
          .scale_format = ScaleFormat::e8m0,
          .scale_layout = layout};
}

std::int64_t elements(const NormSpec& spec, std::int64_t rows) {
  return elements_of(row_of(Operand::block_scale), spec, rows);
}

// Calls visit(place, row, block) of all places in memory in the order of a layout, padding included.
template <class Visit>
void walk(ScaleLayout layout, std::int64_t rows, std::int64_t blocks, Visit visit) {
  std::int64_t place = 0, padded_rows = rows, padded_blocks = blocks;
  while (padded_rows % (layout == ScaleLayout::swizzled ? 128 : 4) != 0) ++padded_rows;
  while (padded_blocks % 4 != 0) ++padded_blocks;
  switch (layout) {
    case ScaleLayout::rows:
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t block = 0; block < blocks; ++block) visit(place++, row, block);
      break;
    case ScaleLayout::columns:
      for (std::int64_t block = 0; block < blocks; ++block)
        for (std::int64_t row = 0; row < padded_rows; ++row) visit(place++, row, block);
      break;
    case ScaleLayout::packed_columns:
      for (std::int64_t word = 0; word < padded_blocks; word += 4)
        for (std::int64_t row = 0; row < padded_rows; ++row)
          for (std::int64_t byte = 0; byte < 4; ++byte) visit(place++, row, word + byte);
      break;
    case ScaleLayout::swizzled:  // a tile is 32 lines of 16 bytes, of four rows each that are 32 apart
      for (std::int64_t tile_row = 0; tile_row < padded_rows; tile_row += 128)
        for (std::int64_t tile_block = 0; tile_block < padded_blocks; tile_block += 4)
          for (std::int64_t line = 0; line < 32; ++line)
            for (std::int64_t part = 0; part < 4; ++part)
              for (std::int64_t byte = 0; byte < 4; ++byte)
                visit(place++, tile_row + 32 * part + line, tile_block + byte);
      break;
  }
}

TEST(ScalePlace, IsInTheOrderOfTheLayout) {
  for (const auto& layout : kScaleLayouts)
    for (const std::int64_t rows : {0, 1, 3, 4, 127, 128, 130, 257})
      for (const std::int64_t blocks : {1, 3, 4, 5, 8}) {
        const NormSpec spec = with_scales(blocks, layout.value);
        std::int64_t count = 0;
        walk(layout.value, rows, blocks, [&](std::int64_t place, std::int64_t row, std::int64_t block) {
          EXPECT_EQ(scale_place(spec, rows, row, block), place)
              << layout.name << " " << rows << ": " << row << ", " << block;
          ++count;
        });
        EXPECT_EQ(elements(spec, rows), count) << layout.name << " " << rows << " " << blocks;
      }
}

TEST(BlockScaleShape, IsEmptyWithoutBlocksAndNeedsRows) {
  EXPECT_EQ(block_scale_shape({.columns = 64}, 3).value(), std::vector<std::int64_t>());
  EXPECT_EQ(block_scale_shape(with_scales(5, ScaleLayout::rows), -1).error().code, Code::BadRows);
}

TEST(ScalePlace, ByHand) {
  const std::int64_t rows = 130;
  EXPECT_EQ(scale_place(with_scales(5, ScaleLayout::rows), rows, 129, 4), 129 * 5 + 4);
  EXPECT_EQ(scale_place(with_scales(5, ScaleLayout::columns), rows, 129, 4), 4 * 132 + 129);
  EXPECT_EQ(scale_place(with_scales(5, ScaleLayout::packed_columns), rows, 129, 4), (132 + 129) * 4);
  EXPECT_EQ(scale_place(with_scales(5, ScaleLayout::packed_columns), rows, 2, 3), 2 * 4 + 3);
  EXPECT_EQ(scale_place(with_scales(5, ScaleLayout::swizzled), rows, 129, 4), 3 * 512 + 16);
  EXPECT_EQ(scale_place(with_scales(5, ScaleLayout::swizzled), rows, 33, 2), 16 + 4 + 2);
}

}  // namespace
}  // namespace normjit
