// SPDX-License-Identifier: Apache-2.0
// What operator.cc has besides where NORMJIT_TORCH_STANDALONE is defined: libnormjit_torch.so, for C++
// programs without Python that run what torch.export and AOTInductor have made. Loading it registers
// normjit::layer_norm and normjit::norm with their schemas, and connects them with libnormjit: the file that
// NORMJIT_LIBRARY names, else libnormjit.so.1. It must not be loaded beside normjit.torch, which defines the
// same operators. Needs PyTorch 2.10.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <tuple>

namespace normjit_torch {
namespace {

// ---- The schemas, as in ../_operator.py and ../_norm.py

constexpr const char* kLayerNormSchema =
    "layer_norm(Tensor x, int dims, Tensor? weight, Tensor? bias, float eps, int activation=1, float "
    "scale=1.0, "
    "ScalarType? dtype=None) -> Tensor y";
constexpr const char* kNormSchema =
    "norm(str spec, Tensor x, Tensor? in_bias, Tensor? gate, Tensor? gate_table, Tensor? residual, "
    "Tensor? weight, Tensor? bias, Tensor? mod_scale, Tensor? mod_scale_table, Tensor? mod_shift, "
    "Tensor? mod_shift_table, Tensor? tensor_scale, Tensor? upper_bound, Tensor? global_scale, "
    "bool batch_invariant) -> Tensor[]";

// ---- The operands of a spec, as in ../../_operands.py

constexpr std::size_t kInputs = 14, kOperands = 22;

std::array<Operand, kMostOperands> operands_of(const normjit_spec& s) {
  const auto packed = s.scale_layout == NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS;
  const std::int32_t affine = s.affine_rows ? kMatrix : kColumns;
  const bool gated = s.gate > NORMJIT_NO_GATE, modulated = s.modulation > NORMJIT_NO_MODULATION;
  const bool shifted = s.modulation == NORMJIT_MOD_SCALE_SHIFT;
  const bool wide = s.input == NORMJIT_F64 || s.output == NORMJIT_F64 || s.weight == NORMJIT_F64 ||
                    s.residual_type == NORMJIT_F64 || s.modulation_type == NORMJIT_F64;
  const std::int32_t compute = wide ? NORMJIT_F64 : NORMJIT_F32;
  const std::int32_t scales = packed                                 ? kFourScales
                              : s.scale_format == NORMJIT_SCALE_E8M0 ? NORMJIT_E8M0
                              : s.scale_format == NORMJIT_SCALE_E4M3 ? NORMJIT_E4M3
                                                                     : NORMJIT_F32;
  constexpr std::int32_t kAlso[] = {0, 0, NORMJIT_F16, NORMJIT_BF16, NORMJIT_F32};
  std::array<Operand, kMostOperands> all{};
  std::size_t at = 0;
  const auto add = [&](std::size_t offset, std::int32_t extent, bool present, std::int32_t dtype,
                       bool output = false) {
    all[at++] = {static_cast<std::uint32_t>(offset), extent, present ? dtype : 0, output};
  };
#define NORMJIT_AT(member) offsetof(normjit_tensors, member)
  add(NORMJIT_AT(x), kMatrix, true, s.input);
  add(NORMJIT_AT(in_bias), kColumns, s.in_bias, s.weight);
  add(NORMJIT_AT(gate), kMatrix, gated, s.modulation_type);
  add(NORMJIT_AT(gate_table), kColumns, gated && s.gate_table, s.weight);
  add(NORMJIT_AT(residual), kMatrix, s.residual > NORMJIT_NO_RESIDUAL, s.residual_type);
  add(NORMJIT_AT(weight), affine, s.affine > NORMJIT_NO_AFFINE, s.weight);
  add(NORMJIT_AT(bias), affine, s.affine == NORMJIT_WEIGHT_BIAS, s.weight);
  add(NORMJIT_AT(mod_scale), kMatrix, modulated, s.modulation_type);
  add(NORMJIT_AT(mod_scale_table), kColumns, modulated && s.modulation_table, s.weight);
  add(NORMJIT_AT(mod_shift), kMatrix, shifted, s.modulation_type);
  add(NORMJIT_AT(mod_shift_table), kColumns, shifted && s.modulation_table, s.weight);
  add(NORMJIT_AT(tensor_scale), kOne, s.quantization == NORMJIT_QUANTIZE_BY_TENSOR, NORMJIT_F32);
  add(NORMJIT_AT(upper_bound), kOne, s.upper_bound, NORMJIT_F32);
  add(NORMJIT_AT(global_scale), kOne, s.scale_format == NORMJIT_SCALE_E4M3, NORMJIT_F32);
  add(NORMJIT_AT(y), s.output == NORMJIT_E2M1 ? kPairs : kMatrix, true, s.output, true);
  add(NORMJIT_AT(sum), kMatrix, s.sum, s.residual_type, true);
  add(NORMJIT_AT(mean), kRows, s.statistics && s.norm != NORMJIT_RMS, compute, true);
  add(NORMJIT_AT(rstd), kRows, s.statistics, compute, true);
  add(NORMJIT_AT(row_scale), kRows, s.quantization == NORMJIT_QUANTIZE_BY_ROW, NORMJIT_F32, true);
  add(NORMJIT_AT(also), kMatrix, s.also > NORMJIT_NO_ALSO,
      kAlso[s.also < static_cast<std::int32_t>(std::size(kAlso)) ? s.also : 0], true);
  add(NORMJIT_AT(block_scale), kBlocks, s.quantization >= NORMJIT_QUANTIZE_BY_BLOCK_16, scales, true);
  add(NORMJIT_AT(amax), kOne, s.amax, NORMJIT_F32, true);
#undef NORMJIT_AT
  return all;
}

// ---- Every spec, by its text

decltype(&normjit_spec_parse) spec_parse = nullptr;

// The problem of a text. The list only grows, so that it needs no lock; a program has few.
const Problem& problem_of(const char* text, std::size_t length, bool batch_invariant) {
  struct Known {
    std::string text;
    bool batch_invariant;
    Problem problem;
    Known* next;
  };
  static std::atomic<Known*> first{nullptr};
  const auto is_same = [&](const Known& known) {
    return known.batch_invariant == batch_invariant && known.text.size() == length &&
           std::memcmp(known.text.data(), text, length) == 0;
  };
  for (const Known* known = first.load(); known; known = known->next)
    if (is_same(*known)) return known->problem;
  auto* const made = new Known{std::string(text, length), batch_invariant, {}, nullptr};
  Problem& problem = made->problem;
  problem.service = batch_invariant ? normjit.invariant_service() : normjit.service;
  problem.spec = NORMJIT_SPEC_INIT;
  char* error = nullptr;
  if (const normjit_status status = spec_parse(made->text.c_str(), &problem.spec, &error);
      status != NORMJIT_OK) {
    delete made;
    fail(status, error);
  }
  if (problem.spec.backward) {
    delete made;
    fail("normjit::norm: the spec is that of gradients");
  }
  problem.operands = operands_of(problem.spec);
  made->next = first.load();
  while (!first.compare_exchange_weak(made->next, made)) {
  }
  return problem;
}

// Arguments: a spec, inputs, whether for batch invariance; result: the list of the outputs.
void boxed_norm(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::array<Tensor, kOperands> tensors;
  for (std::size_t i = 0; i < kInputs; ++i)
    tensors[i] = Tensor(i == 0 ? from_stable<AtenTensorHandle>(stack[1])
                               : take_optional<AtenTensorHandle>(stack[1 + i], nullptr));
  struct Text {
    StringHandle handle;
    ~Text() { torch_delete_string(handle); }
  } const spec{from_stable<StringHandle>(stack[0])};
  const char* text = nullptr;
  std::size_t length = 0;
  require(torch_string_length(spec.handle, &length), "reading a spec");
  require(torch_string_c_str(spec.handle, &text), "reading a spec");
  run(problem_of(text, length, from_stable<bool>(stack[1 + kInputs])), tensors.data(), kOperands);

  StableListHandle list = nullptr;
  require(torch_new_list_reserve_size(kOperands - kInputs, &list), "making a list");
  for (std::size_t i = kInputs; i < kOperands; ++i)
    if (tensors[i]) require(torch_list_push_back(list, to_stable(tensors[i].release())), "making a list");
  stack[0] = to_stable(list);
}

// ---- The connection

decltype(&normjit_service_create) service_create = nullptr;

// Makes a service that works as the environment says.
normjit_service* make_service(bool batch_invariant) {
  normjit_options options = NORMJIT_OPTIONS_INIT;
  options.batch_invariant = batch_invariant ? NORMJIT_YES : 0;
  normjit_service* service = nullptr;
  char* error = nullptr;
  if (const normjit_status status = service_create(&options, &service, &error); status != NORMJIT_OK)
    fail(status, error);
  return service;
}

// Throws, and says what to do, where libnormjit is not found.
void connect_with_library() {
  const char* const named = std::getenv("NORMJIT_LIBRARY");
  const std::string path = named && *named ? named : "libnormjit.so.1";
  void* const library = dlopen(path.c_str(), RTLD_NOW);
  if (!library)
    fail("normjit: " + path + " cannot be opened (" + dlerror() + "); name the library in NORMJIT_LIBRARY");
  const auto find = [&](auto& function, const char* name) {
    void* const address = dlsym(library, name);
    if (!address) fail("normjit: " + path + " is no libnormjit, or an older one: it has no " + name);
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
  };
  decltype(&normjit_abi_version) version = nullptr;
  find(version, "normjit_abi_version");
  if (version() != NORMJIT_ABI_VERSION)
    fail("normjit: the ABI version of " + path + " is " + std::to_string(version()) + ", not " +
         std::to_string(NORMJIT_ABI_VERSION));
  void* functions[5];
  find(functions[0], "normjit_norm");
  find(functions[1], "normjit_workspace_bytes");
  find(functions[2], "normjit_block_scale_shape");
  find(functions[3], "normjit_status_message");
  find(functions[4], "normjit_free");
  find(service_create, "normjit_service_create");
  find(spec_parse, "normjit_spec_parse");
  connect(functions, nullptr, [] {
    static normjit_service* const made = make_service(true);
    return made;
  });
  normjit.service = make_service(false);
}

std::string& why_unavailable() {
  static std::string why;
  return why;
}
// In the place of a function of libnormjit: says why there is none.
template <class... Arguments>
normjit_status unavailable(Arguments... arguments) {
  *std::get<sizeof...(Arguments) - 1>(std::tuple<Arguments...>(arguments...)) =
      strdup(why_unavailable().c_str());
  return NORMJIT_BAD_ARGUMENT;
}

// When this library is loaded. It touches no GPU.
struct Connected {
  Connected() {
    try {
      connect_with_library();
    } catch (const std::exception& error) {
      why_unavailable() = error.what();
      normjit = {&unavailable,
                 &unavailable,
                 nullptr,
                 nullptr,
                 [](char* text) { std::free(text); },
                 nullptr,
                 [] { return static_cast<normjit_service*>(nullptr); }};
      spec_parse = &unavailable;
    }
  }
} const connected;

}  // namespace
}  // namespace normjit_torch

// Why it is not connected with libnormjit, which every call then says; null: it is. The text stays.
extern "C" __attribute__((visibility("default"))) const char* normjit_torch_error() {
  const std::string& why = normjit_torch::why_unavailable();
  return why.empty() ? nullptr : why.c_str();
}

STABLE_TORCH_LIBRARY(normjit, m) {
  m.def(normjit_torch::kLayerNormSchema);
  m.def(normjit_torch::kNormSchema);
}
