// SPDX-License-Identifier: Apache-2.0
// Layers drawn at random, on which `tune --random` measures the planner, and the file that keeps the times.
//
// Such a file is text. A line `gpu NAME` or `seed N` holds for the lines that follow it; a line
//   layer INDEX SPEC rows=N sample=N plane=N align=N copy=MICROSECONDS
// begins a layer, and each of its plans has a line
//   STRATEGY THREADS THREADS_PER_ROW VECTOR PER_THREAD GROUP_ROWS BLOCKS_PER_SM BLOCKS_PER_ROW EXCHANGE
//     UNALIGNED STAGES : MICROSECONDS REGISTERS SPILL_BYTES
// the planner's choice of that time first. The last ones before the colon, from BLOCKS_PER_ROW on, are left out
// where they are 1, none, 0 and 0. Registers and spills are -1 where they are not known. A line `end`
// closes the layer: what was being written when the power failed has none, and does not count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/measure.h"
#include "normjit/plan.h"

namespace normjit::cli {

struct Layer {
  NormSpec spec;
  std::int64_t rows = 0;
  MeasuredUse use;
};

// The same layers for the same seed, whatever their number.
std::vector<Layer> random_layers(std::uint64_t seed, int count);

struct MeasuredPlan {
  Plan plan;
  double microseconds = 0;
  int registers = -1, spill_bytes = -1;
};

struct MeasuredLayer {
  std::string gpu;         // its name and what DeviceProfile::text says
  std::uint64_t seed = 0;  // of random_layers,
  int index = 0;           // and which of them
  Layer layer;
  Alignment alignment = Alignment::eight;
  double copy_microseconds = 0;
  std::vector<MeasuredPlan> plans;
};

// The lines of a layer, `end` with them, but without gpu and seed.
std::string lines_of(const MeasuredLayer& layer);

// A whole file.
std::string text_of(const std::vector<MeasuredLayer>& layers);

// All whole layers of the text of such a file. BadArgument, with the number of the line, for any other line.
Result<std::vector<MeasuredLayer>> parse_layers(const std::string& text);

}  // namespace normjit::cli
