// SPDX-License-Identifier: Apache-2.0
// The compiler on a table of fake functions; nvrtc_compiler_nvrtc_test.cc has the real ones.
#include "normjit/compiler/nvrtc_compiler.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace normjit {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// What the fake NVRTC answers, and what it was asked. One at a time.
struct FakeNvrtc {
  int major = 13, minor = 0;
  std::vector<int> archs = {100, 90, 80};
  nvrtcResult compiled = NVRTC_SUCCESS;
  std::string log, cubin, ptx;
  std::string source, file;
  std::vector<std::string> options;
  int programs = 0;  // alive
};
FakeNvrtc* fake = nullptr;

nvrtcResult give_size(const std::string& text, std::size_t* size) {
  *size = text.size();
  return NVRTC_SUCCESS;
}
nvrtcResult give(const std::string& text, char* to) {
  std::memcpy(to, text.data(), text.size());
  return NVRTC_SUCCESS;
}

NvrtcTable fake_table() {
  NvrtcTable call;
  call.version = [](int* major, int* minor) {
    *major = fake->major;
    *minor = fake->minor;
    return NVRTC_SUCCESS;
  };
  call.error_string = [](nvrtcResult) { return "FAKE_ERROR"; };
  call.arch_count = [](int* count) {
    *count = static_cast<int>(fake->archs.size());
    return NVRTC_SUCCESS;
  };
  call.archs = [](int* archs) {
    std::copy(fake->archs.begin(), fake->archs.end(), archs);
    return NVRTC_SUCCESS;
  };
  call.create_program = [](nvrtcProgram* program, const char* source, const char* file, int,
                           const char* const*, const char* const*) {
    *program = reinterpret_cast<nvrtcProgram>(fake);
    fake->source = source;
    fake->file = file;
    ++fake->programs;
    return NVRTC_SUCCESS;
  };
  call.destroy_program = [](nvrtcProgram*) {
    --fake->programs;
    return NVRTC_SUCCESS;
  };
  call.compile_program = [](nvrtcProgram, int count, const char* const* options) {
    fake->options.assign(options, options + count);
    return fake->compiled;
  };
  call.log_size = [](nvrtcProgram, std::size_t* size) { return give_size(fake->log, size); };
  call.log = [](nvrtcProgram, char* to) { return give(fake->log, to); };
  call.cubin_size = [](nvrtcProgram, std::size_t* size) { return give_size(fake->cubin, size); };
  call.cubin = [](nvrtcProgram, char* to) { return give(fake->cubin, to); };
  call.ptx_size = [](nvrtcProgram, std::size_t* size) { return give_size(fake->ptx, size); };
  call.ptx = [](nvrtcProgram, char* to) { return give(fake->ptx, to); };
  return call;
}

std::string cubin_for(unsigned architecture) {
  Elf64_Ehdr elf = {};
  std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_ABIVERSION] = 8;
  elf.e_machine = EM_CUDA;
  elf.e_flags = architecture << 8;
  return {reinterpret_cast<const char*>(&elf), sizeof elf};
}

class NvrtcCompilerOnFake : public testing::Test {
 protected:
  void SetUp() override { fake = &nvrtc_; }
  void TearDown() override {
    EXPECT_EQ(nvrtc_.programs, 0) << "a program was not destroyed";
    fake = nullptr;
  }

  FakeNvrtc nvrtc_;
  std::shared_ptr<Compiler> compiler_ =
      make_nvrtc_compiler_from([] { return describe_nvrtc(fake_table(), "/fake/libnvrtc.so.13"); });
  const Source source_{.text = "the text", .kernel = "k", .description = "layernorm/cols=64 by plan P"};
};

TEST_F(NvrtcCompilerOnFake, CompilesACubin) {
  nvrtc_.cubin = cubin_for(90);
  nvrtc_.log =
      "ptxas info    : Compiling entry function 'k' for 'sm_90'\n"
      "    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 24 registers, 64 bytes smem\n";
  nvrtc_.log.push_back('\0');
  const auto binary = compiler_->compile(source_, {.number = 90, .suffix = 'a'});
  ASSERT_TRUE(binary.ok()) << binary.error().message;
  EXPECT_EQ(nvrtc_.source, "the text");
  EXPECT_EQ(nvrtc_.file, "k.cu");
  EXPECT_THAT(nvrtc_.options, Contains("--gpu-architecture=sm_90a"));
  EXPECT_EQ(binary->code, nvrtc_.cubin);
  EXPECT_FALSE(binary->ptx);
  EXPECT_EQ(binary->target, "sm_90a");
  EXPECT_EQ(binary->toolchain, "nvrtc 13.0");
  EXPECT_EQ(binary->registers, 24);
  EXPECT_EQ(binary->spill_bytes, 12);
  EXPECT_EQ(binary->shared_bytes, 64);
  EXPECT_TRUE(binary->log.ends_with("smem\n"));
}

TEST_F(NvrtcCompilerOnFake, FallsBackToPtx) {
  nvrtc_.ptx = std::string("the ptx") + '\0';
  const auto binary = compiler_->compile(source_, {.number = 121});
  ASSERT_TRUE(binary.ok()) << binary.error().message;
  EXPECT_THAT(nvrtc_.options, Contains("--gpu-architecture=compute_100"));
  EXPECT_EQ(binary->code, "the ptx");
  EXPECT_TRUE(binary->ptx);
  EXPECT_EQ(binary->target, "compute_100");
  EXPECT_EQ(binary->registers, -1);
}

TEST_F(NvrtcCompilerOnFake, AnArchitectureOlderThanAllIsAnError) {
  const auto binary = compiler_->compile(source_, {.number = 75});
  ASSERT_EQ(binary.code(), Code::UnknownArch);
  EXPECT_THAT(binary.error().message, AllOf(HasSubstr("sm_75"), HasSubstr("sm_80, sm_90, sm_100"),
                                            HasSubstr("/fake/libnvrtc.so.13")));
}

TEST_F(NvrtcCompilerOnFake, AFailureTellsEverything) {
  nvrtc_.compiled = NVRTC_ERROR_COMPILATION;
  nvrtc_.log = "epilogue.cuh(8): error: no";
  const auto binary = compiler_->compile(source_, {.number = 90});
  ASSERT_EQ(binary.code(), Code::CompileFailed);
  EXPECT_EQ(binary.error().message,
            "Cannot compile k for sm_90 (layernorm/cols=64 by plan P): FAKE_ERROR.\n"
            "epilogue.cuh(8): error: no\n"
            "options: --std=c++17 --gpu-architecture=sm_90 --ptxas-options=-v --minimal --no-cache\n"
            "compiler: NVRTC 13.0, /fake/libnvrtc.so.13");
}

TEST_F(NvrtcCompilerOnFake, CodeIsLookedAtBeforeItIsReturned) {
  for (const std::string& wrong : {std::string(), std::string("not an ELF file"), cubin_for(80)}) {
    nvrtc_.cubin = wrong;
    EXPECT_EQ(compiler_->compile(source_, {.number = 90}).code(), Code::CompileFailed);
  }
}

TEST_F(NvrtcCompilerOnFake, TellsItsFacts) {
  const auto facts = compiler_->facts();
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->path, "/fake/libnvrtc.so.13");
  EXPECT_EQ(facts->major, 13);
  EXPECT_EQ(facts->minor, 0);
  EXPECT_THAT(facts->archs, ElementsAre(Arch{.number = 80}, Arch{.number = 90}, Arch{.number = 100}));
}

TEST_F(NvrtcCompilerOnFake, VersionElevenIsTooOld) {
  nvrtc_.major = 11;
  nvrtc_.minor = 8;
  const auto facts = compiler_->facts();
  ASSERT_EQ(facts.code(), Code::CompilerTooOld);
  EXPECT_THAT(facts.error().message, AllOf(HasSubstr("11.8"), HasSubstr("12.0")));
}

TEST_F(NvrtcCompilerOnFake, SearchesOnFirstUseAndUntilItFinds) {
  int searches = 0;
  bool there = false;
  const auto compiler = make_nvrtc_compiler_from([&]() -> Result<Nvrtc> {
    ++searches;
    if (!there) return Error{Code::NoCompiler, "not yet"};
    return describe_nvrtc(fake_table(), "/fake/libnvrtc.so.13");
  });
  EXPECT_EQ(searches, 0);
  EXPECT_EQ(compiler->facts().code(), Code::NoCompiler);
  EXPECT_EQ(compiler->compile(source_, {.number = 90}).code(), Code::NoCompiler);
  EXPECT_EQ(searches, 2);
  there = true;
  EXPECT_TRUE(compiler->facts().ok());
  EXPECT_TRUE(compiler->facts().ok());
  EXPECT_EQ(searches, 3);
}

}  // namespace
}  // namespace normjit
