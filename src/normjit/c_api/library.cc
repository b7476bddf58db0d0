// SPDX-License-Identifier: Apache-2.0
// The library itself, the names of statuses, and the texts of specs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "normjit/c_api/call.h"
#include "normjit/c_api/values.h"

using namespace normjit;
using namespace normjit::c_api;

uint32_t normjit_abi_version() { return NORMJIT_ABI_VERSION; }
const char* normjit_version() { return NORMJIT_VERSION; }

// The names are literals, so they end with a 0 byte.
const char* normjit_status_name(normjit_status status) { return code_name(static_cast<Code>(status)).data(); }
const char* normjit_status_message(normjit_status status) {
  return Status{static_cast<Code>(status)}.message();
}

#define NORMJIT_SAME(name, code) static_assert(NORMJIT_##name == static_cast<normjit_status>(Code::code))
NORMJIT_SAME(OK, Ok);
NORMJIT_SAME(BAD_RANK, BadRank);
NORMJIT_SAME(BAD_DIMENSION, BadDimension);
NORMJIT_SAME(TOO_MANY_COLUMNS, TooManyColumns);
NORMJIT_SAME(BAD_DTYPE, BadDType);
NORMJIT_SAME(BAD_EPSILON, BadEpsilon);
NORMJIT_SAME(BAD_AFFINE, BadAffine);
NORMJIT_SAME(BAD_ACTIVATION, BadActivation);
NORMJIT_SAME(BAD_SCALE, BadScale);
NORMJIT_SAME(BAD_SPEC_TEXT, BadSpecText);
NORMJIT_SAME(BAD_COMBINATION, BadCombination);
NORMJIT_SAME(EMPTY_KERNEL, EmptyKernel);
NORMJIT_SAME(NULL_POINTER, NullPointer);
NORMJIT_SAME(UNEXPECTED_POINTER, UnexpectedPointer);
NORMJIT_SAME(MISALIGNED, Misaligned);
NORMJIT_SAME(BAD_ROWS, BadRows);
NORMJIT_SAME(BAD_STRIDE, BadStride);
NORMJIT_SAME(WORKSPACE_REQUIRED, WorkspaceRequired);
NORMJIT_SAME(WRONG_DEVICE, WrongDevice);
NORMJIT_SAME(OUT_OF_BOUNDS, OutOfBounds);
NORMJIT_SAME(OVERLAP, Overlap);
NORMJIT_SAME(BAD_PLANE, BadPlane);
NORMJIT_SAME(UNKNOWN_ARCH, UnknownArch);
NORMJIT_SAME(ILLEGAL_PLAN, IllegalPlan);
NORMJIT_SAME(BAD_TEMPLATE, BadTemplate);
NORMJIT_SAME(NO_COMPILER, NoCompiler);
NORMJIT_SAME(COMPILE_FAILED, CompileFailed);
NORMJIT_SAME(COMPILER_TOO_OLD, CompilerTooOld);
NORMJIT_SAME(NO_DRIVER, NoDriver);
NORMJIT_SAME(DRIVER_TOO_OLD, DriverTooOld);
NORMJIT_SAME(NO_DEVICE, NoDevice);
NORMJIT_SAME(NO_CONTEXT, NoContext);
NORMJIT_SAME(LOAD_FAILED, LoadFailed);
NORMJIT_SAME(DRIVER_ERROR, DriverError);
NORMJIT_SAME(OUT_OF_MEMORY, OutOfMemory);
NORMJIT_SAME(NOT_RESIDENT, NotResident);
NORMJIT_SAME(FORKED_AFTER_CUDA_INIT, ForkedAfterCudaInit);
NORMJIT_SAME(CACHE_IO, CacheIo);
NORMJIT_SAME(UNTRUSTED, Untrusted);
NORMJIT_SAME(BAD_ARGUMENT, BadArgument);
NORMJIT_SAME(NOT_CACHED, NotCached);
NORMJIT_SAME(NOT_READY, NotReady);
#undef NORMJIT_SAME

normjit_status normjit_columns_of(const int64_t* shape, size_t rank, int64_t* columns, char** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    if (shape == nullptr && rank > 0) return null("shape");
    if (columns == nullptr) return null("columns");
    return store(columns_of({shape, rank}), columns);
  });
}

normjit_status normjit_spec_parse(const char* text, normjit_spec* spec, char** error) {
  return guarded(error, {{"text", text}, {"spec", spec}}, [&]() -> Result<void> {
    const auto parsed = parse_spec(text);
    if (!parsed) return parsed.error();
    if (!is_size(spec->struct_size)) return struct_mistake("normjit_spec", spec);
    if (write(*parsed, *spec)) return {};
    return Error{Code::BadArgument,
                 "this spec needs a member that this program's normjit_spec does not have"};
  });
}

normjit_status normjit_spec_text(const normjit_spec* spec, char** text, char** error) {
  return guarded(error, {}, [&]() -> Result<void> {
    const auto given = valid_spec_of(spec);
    if (!given) return given.error();
    return text == nullptr ? Result<void>() : hand_over(to_text(*given), text);
  });
}

namespace {

std::int32_t extent_of(const OperandRow& row, const NormSpec& spec) {
  switch (row.extent) {
    case Extent::matrix:
      return NORMJIT_EXTENT_MATRIX;
    case Extent::shared:
      return NORMJIT_EXTENT_SHARED;
    case Extent::columns:
      return NORMJIT_EXTENT_COLUMNS;
    case Extent::affine:
      return is_matrix(row, spec) ? NORMJIT_EXTENT_MATRIX : NORMJIT_EXTENT_COLUMNS;
    case Extent::rows:
      return NORMJIT_EXTENT_ROWS;
    case Extent::one:
      return NORMJIT_EXTENT_ONE;
    case Extent::blocks:
      return NORMJIT_EXTENT_BLOCKS;
  }
  return 0;
}

// Of an operand that the spec has.
normjit_operand describe(const OperandRow& row, const NormSpec& spec) {
  normjit_operand described = NORMJIT_OPERAND_INIT;
  described.name = row.name.data();  // a literal, which ends with a 0 byte
  described.offset = sizeof(std::size_t) + row.offset;
  described.operand = number_of(row.operand);
  described.output = row.output;
  described.extent = extent_of(row, spec);
  described.dtype = number_of(row.dtype(spec));
  if (row.in_place != row.operand && row_of(row.in_place).present(spec))
    described.in_place = number_of(row.in_place);
  return described;
}

}  // namespace

normjit_status normjit_operands(const normjit_spec* spec, normjit_operand* operands, size_t* count,
                                char** error) {
  return guarded(error, {{"count", count}}, [&]() -> Result<void> {
    const auto given = valid_spec_of(spec);
    if (!given) return given.error();
    std::vector<normjit_operand> present;
    for (const OperandRow& row : kOperands)
      if (row.present(*given)) present.push_back(describe(row, *given));
    if (operands != nullptr && *count >= present.size()) {
      const std::size_t step = operands->struct_size;
      if (!is_size(step)) return struct_mistake("normjit_operand", operands);
      auto* to = reinterpret_cast<std::byte*>(operands);
      for (const normjit_operand& one : present) {
        std::memcpy(to, &step, sizeof step);
        // Members that an older caller lacks say nothing that changes the meaning of the others.
        write_known_part(&one, sizeof one, to);
        to += step;
      }
    }
    *count = present.size();
    return {};
  });
}

normjit_status normjit_block_scale_shape(const normjit_spec* spec, int64_t rows, int64_t* shape, size_t* rank,
                                         char** error) {
  return guarded(error, {{"shape", shape}, {"rank", rank}}, [&]() -> Result<void> {
    const auto given = valid_spec_of(spec);
    if (!given) return given.error();
    const auto found = block_scale_shape(*given, rows);
    if (!found) return found.error();
    *rank = found->size();
    std::copy(found->begin(), found->end(), shape);
    return {};
  });
}
