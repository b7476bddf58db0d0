// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"

namespace normjit::cli {
namespace {

using namespace std::string_view_literals;
using testing::HasSubstr;
using testing::Not;

TEST(Common, ErrorsQuoteSpecsAndPlansAsShown) {
  EXPECT_EQ(spec_from("layernorm/cols=64/f32/wb").value(), parse_spec("layernorm/cols=64/f32/wb").value());
  const auto wrong = spec_from("layernorm/cols=64/f32\0\n\x1b[31m"sv);
  EXPECT_EQ(wrong.code(), Code::BadSpecText);
  EXPECT_THAT(wrong.error().message, HasSubstr(R"('layernorm/cols=64/f32\x00\n\x1b[31m' is not a spec)"));
  EXPECT_LT(spec_from(std::string(3'000'000, 'a')).error().message.size(), 1000u);
  EXPECT_THAT(plan_from("warp_rows\x1b[31m").error().message, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace normjit::cli
