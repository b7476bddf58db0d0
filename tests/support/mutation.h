// SPDX-License-Identifier: Apache-2.0
// Kernel templates with one mistake in them, to see that the tests of the kernels notice it.
//
// Planted faults are mistakes that a human might make, each with a name. Automatic mutants are every small
// change of a kind that a machine can make: a barrier, wait or fence less, a comparison or a number that is
// off by one, another operator.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/base/source.h"
#include "normjit/result.h"

namespace normjit::testing {

// One change of one template file.
struct Mutant {
  std::string file;           // "schedule/split_row.cu"
  std::size_t at, length;     // what is replaced in the text of the file
  std::string replacement;    //
  std::string line, becomes;  // the line around it, without indentation, and what it reads then
  int nth = 1;                // of the lines in the file that read alike
  std::string fault;          // the name of a planted fault; empty for automatic mutants
};

// "op/statistics.cuh: rest forgotten", or the file, the line, what it becomes and which one it is.
std::string to_text(const Mutant& mutant);

// The files that are changed: all templates but spec.cuh.in, which has only the constants of the plan, and
// hw.cuh, of which the CPU runs another half.
std::vector<std::string> mutated_files();

// The planted faults of all files, by their embedded text. BadTemplate for a fault whose text does not occur
// exactly once: it would no longer be planted.
Result<std::vector<Mutant>> planted_faults();

// Every automatic mutant of a text, in its order. Comments, preprocessor lines and static_asserts stay as
// they are. Changed, one at a time, are
//   hw:: calls that order or wait, as statements   removed
//   hw::arrive                                     the same without ordering, hw::take_ticket
//   comparisons                                    < and <=, > and >=, == and != take each other's place
//   && and ||, + and -, * and /, << and >>         likewise, also in += and the like; % becomes /, ^= becomes
//                                                  |=, & becomes |
//   unary minus, !                                 removed
//   integers                                       one less, 0 one more, beside + and - both
//   floating-point numbers                         larger by one percent
// What is a binary operator and what a template bracket is told by the blanks that clang-format sets.
std::vector<Mutant> automatic_mutants(std::string_view file, std::string_view text);

// The kernel with this change. The source has been generated from the embedded templates and has the file.
Source mutated(const Source& source, const Mutant& mutant);

}  // namespace normjit::testing
