// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command_line.h"

namespace normjit::bench {

void add_features(cli::CommandLine& line);

}  // namespace normjit::bench
