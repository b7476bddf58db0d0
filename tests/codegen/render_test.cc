// SPDX-License-Identifier: Apache-2.0
#include "normjit/codegen/templates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace normjit {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Result<std::string> rendered(std::string_view text, const std::vector<Placeholder>& values = {}) {
  return render("some.cuh.in", text, values);
}

void expect_refused(std::string_view text, const std::vector<Placeholder>& values, const std::string& where,
                    const std::string& key) {
  const auto refused = rendered(text, values);
  ASSERT_EQ(refused.code(), Code::BadTemplate) << text;
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr(where + ": "), HasSubstr("'" + key)));
}

TEST(Render, PutsValuesInPlace) {
  EXPECT_EQ(rendered("int n = {{n}};\n", {{"n", "64"}}).value(), "int n = 64;\n");
  EXPECT_EQ(rendered("{{a}}{{b}}{{a}}", {{"a", "1"}, {"b", "2"}}).value(), "121");
  EXPECT_EQ(rendered("{{b}} {{a}}", {{"a", "1"}, {"b", ""}}).value(), " 1");
}

TEST(Render, LeavesAllOtherTextAsItIs) {
  for (const char* text : {"", "plain", "{ one } brace }", "if (a) { b } else { c }}", "\r\n\t\"\\ $ % {"})
    EXPECT_EQ(rendered(text).value(), text);
}

TEST(Render, KeysAreWholeNames) {
  EXPECT_EQ(rendered("{{row}} {{rows}}", {{"rows", "many"}, {"row", "one"}}).value(), "one many");
}

TEST(Render, DoesNotLookIntoValues) {
  EXPECT_EQ(rendered("{{a}} {{b}}", {{"a", "{{b}}"}, {"b", "}}{{a}}{{"}}).value(), "{{b}} }}{{a}}{{");
}

TEST(Render, RefusesAPlaceholderWithoutAValue) {
  expect_refused("{{unknown}}", {}, "some.cuh.in(1)", "unknown'");
  expect_refused("one\ntwo {{a}}\nthree {{b}}\n", {{"a", "1"}}, "some.cuh.in(3)", "b'");
  expect_refused("{{}}", {{"a", "1"}}, "some.cuh.in(1)", "'");
  expect_refused("{{ a }}", {{"a", "1"}}, "some.cuh.in(1)", " a '");
  expect_refused("{{A}}", {{"a", "1"}}, "some.cuh.in(1)", "A'");
  expect_refused("{{{a}}}", {{"a", "1"}}, "some.cuh.in(1)", "{a'");
}

TEST(Render, RefusesAValueWithoutAPlaceholder) {
  expect_refused("no placeholder", {{"a", "1"}}, "some.cuh.in(1)", "a'");
  expect_refused("{{a}}", {{"a", "1"}, {"b", "2"}}, "some.cuh.in(1)", "b'");
  // A value that shows a placeholder does not use it.
  expect_refused("{{a}}", {{"a", "{{b}}"}, {"b", "2"}}, "some.cuh.in(1)", "b'");
}

TEST(Render, RefusesTwoValuesOfOneKey) {
  expect_refused("{{a}}", {{"a", "1"}, {"a", "2"}}, "some.cuh.in(1)", "a'");
  expect_refused("{{a}}", {{"a", "1"}, {"b", "1"}, {"a", "1"}}, "some.cuh.in(1)", "a'");
}

TEST(Render, RefusesBracesThatDoNotClose) {
  expect_refused("{{a", {{"a", "1"}}, "some.cuh.in(1)", "{{a");
  expect_refused("{{a}}\n{{a}\n", {{"a", "1"}}, "some.cuh.in(2)", "{{a}");
  expect_refused("text {{", {}, "some.cuh.in(1)", "{{");
}

}  // namespace
}  // namespace normjit
