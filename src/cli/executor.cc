// SPDX-License-Identifier: Apache-2.0
#include "cli/executor.h"

#include "normjit/base/text.h"

namespace normjit::cli {
namespace {

// The word as a shell reads it back.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

}  // namespace

Result<std::optional<int>> parse_device(std::string_view text) {
  if (text == "host") return std::optional<int>();
  const std::optional<int> ordinal = number<int>(text);
  if (ordinal && *ordinal >= 0) return ordinal;
  return Error{Code::BadArgument,
               concat({"--device is '", text,
                       "'; it may be the CUDA ordinal of a GPU, from 0 on, or host for the CPU"})};
}

Result<std::vector<std::uint64_t>> parse_schedules(std::string_view list) {
  std::vector<std::uint64_t> seeds;
  for (const std::string_view word : split(list, ',')) {
    const std::optional<std::uint64_t> seed = number<std::uint64_t>(word);
    if (!seed) {
      return Error{Code::BadArgument,
                   concat({"--schedule is '", list, "'; it must be numbers from 0 on, as in 0,1,2"})};
    }
    seeds.push_back(*seed);
  }
  return seeds;
}

std::string replay_command(const std::vector<std::string>& command,
                           const std::vector<std::uint64_t>& schedules,
                           const std::string& template_directory) {
  constexpr std::string_view kOption = "--schedule";
  std::string line;
  if (!template_directory.empty()) line = concat({"NORMJIT_TEMPLATE_DIR=", quoted(template_directory), " "});
  for (std::size_t i = 0; i < command.size(); ++i) {
    const bool with_value = command[i].starts_with(concat({kOption, "="}));
    if (command[i] == kOption)
      ++i;  // its value is the next word
    else if (!with_value)
      line += quoted(command[i]) + " ";
  }
  line += kOption;
  for (std::size_t i = 0; i < schedules.size(); ++i) line += (i == 0 ? " " : ",") + shortest(schedules[i]);
  return line;
}

}  // namespace normjit::cli
