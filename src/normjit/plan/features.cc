// SPDX-License-Identifier: Apache-2.0
#include "normjit/plan/features.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "normjit/plan/footprint.h"
#include "normjit/plan/grid.h"

namespace normjit {
namespace {

// The binary logarithm to a few parts in a thousand, without a call of the mathematical library: most of the
// time that a choice takes would go there.
float log2_of(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(std::max(value, 1e-9));
  const auto exponent = static_cast<int>(bits >> 52) - 1023;
  const auto mantissa =
      static_cast<float>(std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u)) - 1;
  return static_cast<float>(exponent) + mantissa * (1.34f - 0.34f * mantissa);
}

}  // namespace

LaunchFeatures::LaunchFeatures(const NormSpec& spec, const DeviceProfile& device, std::int64_t rows)
    : spec_(spec),
      device_(device),
      rows_(rows),
      weight_bytes_(spec.affine == Affine::none ? 0 : size_of(spec.weight)),
      read_bytes_(read_bytes(spec)),
      widest_element_(std::max(widest_element(spec), weight_bytes_)) {
  Features& f = common_;
  const double sms = device.sm_count;
  const std::int64_t moved = read_bytes_ + written_bytes(spec);
  const double row_bytes = static_cast<double>(spec.columns * moved);
  const double affine = static_cast<double>(spec.columns * static_cast<int>(spec.affine) * weight_bytes_);
  const double bytes = static_cast<double>(rows) * row_bytes + affine;
  f[Feature::log_bytes] = log2_of(bytes / sms);
  f[Feature::log_rows] = log2_of(static_cast<double>(rows) / sms);
  f[Feature::log_row_bytes] = log2_of(row_bytes);
  f[Feature::input_bytes] = static_cast<float>(size_of(spec.input));
  f[Feature::moved_bytes] = static_cast<float>(moved);
  f[Feature::in_double] = compute_type(spec) == DType::f64;
  f[Feature::calls_function] = calls_function(spec);
  f[Feature::affine_share] = static_cast<float>(affine / bytes);
  f[Feature::parameters] = static_cast<float>(static_cast<int>(spec.affine) + row_parameters(spec));
  f[Feature::row_parameters] = static_cast<float>(row_parameters(spec));
  f[Feature::adds_rows] = adds_rows(spec) || spec.dsum;
  f[Feature::is_layer] = spec.norm == Norm::layer;
  f[Feature::scales] = scales_rows(spec) ? 2 : scales_blocks(spec) ? 1 : 0;
  f[Feature::mixes_types] = !same_dtypes(spec);
  f[Feature::needs_sums] = static_cast<float>(sums_over_rows(spec));
}

Features LaunchFeatures::of(const Plan& plan) const {
  const NormSpec& spec = spec_;
  const double sms = device_.sm_count;
  Features f = common_;
  const bool persistent = plan.strategy == Strategy::persistent_row;
  const bool ring = persistent || plan.strategy == Strategy::gradient_ring;
  const bool twice = plan.strategy == Strategy::split_row || plan.strategy == Strategy::gradient_columns;
  f[Feature::in_warps] = plan.strategy == Strategy::warp_rows;
  f[Feature::staged] = plan.strategy == Strategy::staged_rows;
  f[Feature::in_ring] = ring;
  f[Feature::read_twice] = twice;
  f[Feature::log_threads] = log2_of(plan.threads);
  f[Feature::log_row_threads] = log2_of(plan.threads_per_row);
  const int access = plan.vector * size_of(spec.input);
  f[Feature::access_bytes] = static_cast<float>(access);
  f[Feature::widest_access] = static_cast<float>(plan.vector * widest_element_);
  f[Feature::per_thread] = static_cast<float>(plan.per_thread);
  f[Feature::elements] = static_cast<float>(plan.per_thread * plan.vector * rows_per_thread(plan));
  f[Feature::blocks] = static_cast<float>(plan.blocks_per_sm);
  const int threads = plan.threads * plan.blocks_per_sm;
  f[Feature::warps] = static_cast<float>(threads / kWarp);
  const int registers = registers_of_a_thread(plan.threads, plan.blocks_per_sm, device_);
  f[Feature::registers] = static_cast<float>(registers);
  f[Feature::held] = static_cast<float>(held_registers(plan, spec));
  f[Feature::spare] = static_cast<float>(registers - needed_registers(plan, spec, device_.arch));

  const double shared = static_cast<double>(shared_bytes(plan, spec)) * plan.blocks_per_sm;
  const double span = static_cast<double>(columns_per_block(plan));
  const double columns = static_cast<double>(spec.columns);
  const double own = std::ceil(columns / plan.blocks_per_row);  // of a block
  const double pieces = std::max(1.0, std::ceil(own / span));
  const double in_rows = static_cast<double>(rows_per_block(plan));
  f[Feature::log_in_flight] =
      log2_of(ring ? shared
                   : static_cast<double>(threads) * plan.per_thread * plan.vector * rows_per_thread(plan) *
                         read_bytes_);
  f[Feature::idle] =
      static_cast<float>(std::max(0.0, pieces * span * plan.blocks_per_row /
                                               std::max<double>(1, static_cast<double>(covered(plan, spec))) -
                                           1));
  const double parts = std::ceil(static_cast<double>(rows_) / in_rows);
  const double all_blocks = twice ? parts * pieces : parts * plan.blocks_per_row;
  const double waves = all_blocks / (sms * plan.blocks_per_sm);
  f[Feature::log_waves] = log2_of(waves);
  f[Feature::tail] = static_cast<float>(std::min(1.0, std::ceil(waves) / waves - 1));
  f[Feature::busy] = static_cast<float>(std::min(1.0, all_blocks / sms));
  f[Feature::log_row_blocks] = log2_of(plan.blocks_per_row);
  f[Feature::over_grid] = plan.exchange == Exchange::grid;
  f[Feature::alone] = is_of_gradients(plan) && plan.exchange == Exchange::none;
  f[Feature::group_rows] = static_cast<float>(plan.group_rows);
  f[Feature::unaligned] = plan.unaligned;
  f[Feature::ring_rows] = static_cast<float>(!ring        ? 0
                                             : persistent ? std::min(32.0, plan.stages / pieces)
                                                          : plan.stages);
  f[Feature::shared_kib] = static_cast<float>(shared / 1024);
  const bool planes = plan.strategy == Strategy::channels_first;
  f[Feature::log_run] =
      log2_of(planes ? in_rows * size_of(spec.input) : static_cast<double>(plan.threads_per_row) * access);
  f[Feature::early] =
      !is_of_gradients(plan) && !planes && !ring &&
      (spec.affine != Affine::none || row_parameters(spec) > 0) &&
      loads_parameters_early(plan, spec, plan_math::low_occupancy(plan.threads, plan.blocks_per_sm));
  f[Feature::log_slice] = log2_of(std::min(own, span) * size_of(spec.input));
  f[Feature::log_pieces] = log2_of(pieces);
  if (sums_over_rows(spec) > 0) {
    const double blocks = static_cast<double>(grid_blocks(plan, spec, device_, rows_));
    const double sum_parts = twice ? std::max(1.0, blocks / pieces) : blocks / plan.blocks_per_row;
    f[Feature::log_sums] =
        log2_of(sum_parts * sums_over_rows(spec) * columns * size_of(compute_type(spec)) / sms);
  }
  return f;
}

}  // namespace normjit
