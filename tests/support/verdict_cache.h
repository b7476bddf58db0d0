// SPDX-License-Identifier: Apache-2.0
// Good verdicts of earlier runs of a test, so that only what is new has to be tried.
//
// The cache is a set of keys. A key is the digest of everything that a verdict depends on; it is kept once a
// run has found the verdict good. A changed input has another key, so no entry is ever out of date. Bad
// verdicts are not kept.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>

namespace normjit::testing {

// Every fault of the folder or a file costs keys and reports nothing. Any number of threads and processes may
// use the same files.
class VerdictCache {
 public:
  // In NORMJIT_TEST_CACHE, else $XDG_CACHE_HOME/normjit-tests, else $HOME/.cache/normjit-tests; "off" keeps
  // nothing. `suite` names the files. `code` is the digest of the code that comes to the verdicts; it is part
  // of every key.
  VerdictCache(std::string_view suite, std::string_view code);
  // An empty folder keeps nothing. `day` counts from 1970 on.
  VerdictCache(const std::string& folder, std::string_view suite, std::string_view code, std::uint64_t seed,
               std::int64_t day);

  std::string key(std::initializer_list<std::string_view> facts) const;

  // Whether an earlier process has kept the key. Counts as a use: a key that is not used for 30 days is
  // dropped.
  bool has(const std::string& key) const;
  // True for a twentieth of all keys, which the seed chooses: they are tried again although they are known.
  bool is_due(const std::string& key) const { return is_one_of(20, key); }
  // Whether a key that is not known is tried: one of test_part() is, which the seed chooses.
  bool is_in_part(const std::string& key) const { return part_ <= 1 || is_one_of(part_, key); }
  void keep(const std::string& key) const;
  // Drops all keys of the suite: a known verdict was wrong, so a key lacks something that verdicts depend on.
  void discard() const;

 private:
  bool is_one_of(std::uint64_t parts, const std::string& key) const;

  std::uint64_t part_ = 1;
  std::string code_, seed_, newer_, older_;  // the two files; empty: none
  std::unordered_set<std::string> in_newer_, in_older_;
};

// Where the verdicts of this process lie; empty: nowhere.
std::string verdict_folder();

}  // namespace normjit::testing
