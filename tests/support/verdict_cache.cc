// SPDX-License-Identifier: Apache-2.0
#include "tests/support/verdict_cache.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "normjit/base/digest.h"
#include "normjit/base/text.h"
#include "tests/support/test_seed.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;

// A file is written for so many days. It is read for as many days more, and then removed.
constexpr std::int64_t kDays = 15;
// 64,000 keys, about fifteen times the kernels of all templates. A larger file counts as that of the days
// before.
constexpr std::uintmax_t kMostBytes = 2 << 20;
constexpr std::size_t kKeyLength = 32;

std::int64_t today() {
  using Days = std::chrono::duration<std::int64_t, std::ratio<86400>>;
  return std::chrono::duration_cast<Days>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A line of another length is a torn write. A damaged key is one that no verdict has.
std::unordered_set<std::string> read_keys(const std::string& file) {
  std::unordered_set<std::string> keys;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (line.size() == kKeyLength) keys.insert(line);
  return keys;
}

}  // namespace

std::string verdict_folder() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string named = variable("NORMJIT_TEST_CACHE");
  if (!named.empty()) return named == "off" ? "" : named;
  const std::string caches = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!caches.empty()) return caches + "/normjit-tests";
  return home.empty() ? "" : home + "/.cache/normjit-tests";
}

VerdictCache::VerdictCache(std::string_view suite, std::string_view code)
    : VerdictCache(verdict_folder(), suite, code, test_seed(), today()) {
  part_ = test_part();
}

VerdictCache::VerdictCache(const std::string& folder, std::string_view suite, std::string_view code,
                           std::uint64_t seed, std::int64_t day)
    : code_(code), seed_(shortest(seed)) {
  if (folder.empty()) return;
  const std::string begin = concat({folder, "/", suite, "."});
  newer_ = begin + shortest(day / kDays);
  older_ = begin + shortest(day / kDays - 1);
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (const auto bytes = fs::file_size(newer_, failure); !failure && bytes > kMostBytes)
    fs::rename(newer_, older_, failure);
  std::vector<fs::path> outdated;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure))
    if (const std::string file = at->path(); file.starts_with(begin) && file != newer_ && file != older_)
      outdated.push_back(file);
  for (const fs::path& file : outdated) fs::remove(file, failure);
  in_newer_ = read_keys(newer_);
  in_older_ = read_keys(older_);
}

std::string VerdictCache::key(std::initializer_list<std::string_view> facts) const {
  std::string all = code_;
  for (const std::string_view fact : facts) all += concat({"\n", shortest(fact.size()), " ", fact});
  return digest(all);
}

bool VerdictCache::has(const std::string& key) const {
  if (in_newer_.contains(key)) return true;
  if (!in_older_.contains(key)) return false;
  keep(key);
  return true;
}

bool VerdictCache::is_one_of(std::uint64_t parts, const std::string& key) const {
  return std::stoull(digest(seed_ + key).substr(0, 15), nullptr, 16) % parts == 0;
}

void VerdictCache::keep(const std::string& key) const {
  // Written at once, by a single write to the file's end, so that other processes' keys stay whole.
  if (!newer_.empty()) std::ofstream(newer_, std::ios::app) << key + "\n";
}

void VerdictCache::discard() const {
  std::error_code ignored;
  for (const std::string& file : {newer_, older_})
    if (!file.empty()) fs::remove(file, ignored);
}

}  // namespace normjit::testing
