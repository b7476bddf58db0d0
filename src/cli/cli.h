// The normjit command-line tool.
#pragma once

namespace normjit::cli {

// Parses the arguments, runs one command and returns the exit status of the process. Data goes to stdout,
// progress, logs and error messages go to stderr. Never throws.
int run(int argc, char** argv);

}  // namespace normjit::cli
