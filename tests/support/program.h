// SPDX-License-Identifier: Apache-2.0
// Programs in the place of normjit-compile, which count their starts. NORMJIT_FAKE_COMPILE is the fake one.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/temp_directory.h"

namespace normjit::testing {

class Program {
 public:
  // A shell script that counts its start and goes on with `commands`. Its path: normjit-compile in a
  // directory of its own.
  std::string script(const std::string& commands) const {
    const std::string path = directory_ / "normjit-compile";
    std::ofstream(path) << "#!/bin/sh\nprintf . >> '" << directory_ / "starts"
                        << "'\n"
                        << commands << "\n";
    EXPECT_EQ(::chmod(path.c_str(), 0700), 0);
    return path;
  }
  // The fake one in this mode (fake_compile.cc).
  std::string serving(const std::string& mode = "") const { return script(command(mode)); }
  // The same, and in another mode from the second start on.
  std::string serving(const std::string& first, const std::string& then) const {
    const std::string again = "'" + directory_ / "again" + "'";
    return script("test -e " + again + " && " + command(then) + "\n: > " + again + "\n" + command(first));
  }
  static std::string command(const std::string& mode) { return "exec '" NORMJIT_FAKE_COMPILE "' " + mode; }

  std::ptrdiff_t starts() const {
    std::ifstream file(directory_ / "starts");
    return std::distance(std::istreambuf_iterator<char>(file), {});
  }
  // A file beside the program.
  std::string operator/(const std::string& name) const { return directory_ / name; }

 private:
  TempDirectory directory_;
};

}  // namespace normjit::testing
