// SPDX-License-Identifier: Apache-2.0
// The driver calls that the tool needs besides the library's: memory, streams, events, graphs, the primary
// context.
#pragma once

#include "normjit/driver/driver_table.h"

namespace normjit::cli {

// Members are named after their cu... functions. Signatures are those of CUDA 12.0, the oldest driver
// supported.
struct GpuCalls {
  DriverTable library;  // the library's own calls

  CUresult (*primary_context_retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*primary_context_release)(CUdevice) = nullptr;
  CUresult (*context_set_current)(CUcontext) = nullptr;
  CUresult (*memory_info)(std::size_t* free, std::size_t* total) = nullptr;
  CUresult (*memory_allocate)(CUdeviceptr*, std::size_t) = nullptr;
  CUresult (*memory_free)(CUdeviceptr) = nullptr;
  CUresult (*copy_to_device)(CUdeviceptr, const void*, std::size_t) = nullptr;
  CUresult (*copy_to_host)(void*, CUdeviceptr, std::size_t) = nullptr;
  CUresult (*copy_on_device)(CUdeviceptr to, CUdeviceptr from, std::size_t) = nullptr;
  CUresult (*set_bytes)(CUdeviceptr, unsigned char, std::size_t) = nullptr;
  CUresult (*stream_create)(CUstream*, unsigned) = nullptr;
  CUresult (*stream_destroy)(CUstream) = nullptr;
  CUresult (*stream_synchronize)(CUstream) = nullptr;
  CUresult (*stream_begin_capture)(CUstream, CUstreamCaptureMode) = nullptr;
  CUresult (*stream_end_capture)(CUstream, CUgraph*) = nullptr;
  CUresult (*event_create)(CUevent*, unsigned) = nullptr;
  CUresult (*event_destroy)(CUevent) = nullptr;
  CUresult (*event_record)(CUevent, CUstream) = nullptr;
  CUresult (*event_synchronize)(CUevent) = nullptr;
  CUresult (*event_elapsed_milliseconds)(float*, CUevent, CUevent) = nullptr;
  CUresult (*graph_instantiate)(CUgraphExec*, CUgraph, unsigned long long) = nullptr;
  CUresult (*graph_destroy)(CUgraph) = nullptr;
  CUresult (*graph_exec_destroy)(CUgraphExec) = nullptr;
  CUresult (*graph_launch)(CUgraphExec, CUstream) = nullptr;
};

// The calls of this machine's driver. NoDriver, DriverTooOld.
Result<GpuCalls> open_gpu_calls();

}  // namespace normjit::cli
