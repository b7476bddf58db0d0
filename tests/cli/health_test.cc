// SPDX-License-Identifier: Apache-2.0
#include "cli/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace normjit::cli {
namespace {

using ::testing::HasSubstr;

// A machine on which all is well.
Environment well() {
  Environment found;
  found.cache_directory = "/cache";
  found.embedded_archs = {Arch{90}};
  found.compiler_path = "/lib/libnvrtc.so.13";
  found.driver_version = "13.0";
  found.devices = {{0, "a GPU", DeviceProfile::of(Arch{90}).value()}};
  return found;
}

Options mode(Mode mode) {
  Options options;
  options.mode = mode;
  return options;
}

TEST(Health, AWholeMachineCanDoBoth) {
  EXPECT_TRUE(can_prebuild(well()).ok());
  for (const Mode each : {Mode::eager, Mode::lazy, Mode::cached_only})
    EXPECT_TRUE(can_serve(well(), mode(each)).ok());
}

TEST(Health, PrebuildNeedsACompilerAndACache) {
  Environment found = well();
  found.devices.clear(), found.driver_version.clear(), found.driver_error = "none";
  EXPECT_TRUE(can_prebuild(found).ok()) << "it needs no GPU";
  found.cache_error = "read-only";
  EXPECT_EQ(can_prebuild(found).code(), Code::CacheIo);
  found = well();
  found.cache_directory.clear();
  EXPECT_EQ(can_prebuild(found).code(), Code::CacheIo);
  found.compiler_path.clear();
  EXPECT_EQ(can_prebuild(found).code(), Code::NoCompiler);
}

TEST(Health, ServingNeedsAGpu) {
  Environment found = well();
  found.devices.clear();
  EXPECT_EQ(can_serve(found, mode(Mode::eager)).code(), Code::NoDevice);
  found = well();
  found.driver_error = "the second GPU has fallen off the bus";
  EXPECT_THAT(can_serve(found, mode(Mode::eager)).error().message, HasSubstr("second GPU"));
  found.driver_version.clear();
  EXPECT_EQ(can_serve(found, mode(Mode::eager)).code(), Code::NoDriver);
}

TEST(Health, ServingNeedsKernels) {
  Environment found = well();
  found.compiler_path.clear();
  EXPECT_TRUE(can_serve(found, mode(Mode::eager)).ok()) << "the generic kernels serve";
  found.embedded_archs.clear();
  EXPECT_EQ(can_serve(found, mode(Mode::lazy)).code(), Code::NoCompiler);
  EXPECT_TRUE(can_serve(found, mode(Mode::cached_only)).ok()) << "the cache may have all";
  found.cache_directory.clear();
  EXPECT_EQ(can_serve(found, mode(Mode::cached_only)).code(), Code::CacheIo);
  found.layers = {{"/kernels.njp", 10, ""}};
  EXPECT_TRUE(can_serve(found, mode(Mode::cached_only)).ok());
  found.layers.push_back({"/more.njp", 0, "cut"});
  EXPECT_THAT(can_serve(found, mode(Mode::cached_only)).error().message, HasSubstr("/more.njp"));
}

TEST(Health, WhatCostsOnlyTimeIsNoError) {
  Environment found = well();
  found.cache_error = "read-only";
  found.remote.url = "redis://store", found.remote.error = "refused";
  found.layers = {{"/kernels.njp", 0, "cut"}};
  EXPECT_TRUE(can_serve(found, mode(Mode::eager)).ok());
}

}  // namespace
}  // namespace normjit::cli
