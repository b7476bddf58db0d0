#include "normjit/driver/cuda_allocation.h"

#include <cstdint>
#include <iterator>

#include "normjit/driver/driver_error.h"

namespace normjit {
namespace {

// Memory that cuMemMap mapped in pieces, as PyTorch's expandable segments: the driver tells the range of one
// piece, and a tensor may continue in the next.
bool is_mapped_in_pieces(const DriverTable& driver, const void* address) {
  CUmemGenericAllocationHandle piece = 0;
  if (driver.cuMemRetainAllocationHandle(&piece, const_cast<void*>(address)) != CUDA_SUCCESS) return false;
  driver.cuMemRelease(piece);
  return true;
}

}  // namespace

Result<Allocation> read_allocation(const DriverTable& driver, const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  // Initialised, because the driver does not write what does not apply, and writes a flag as one byte or
  // four.
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  CUdeviceptr device_address = 0, start = 0;
  std::size_t bytes = 0;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,   CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
  };
  void* values[] = {&type, &managed, &ordinal, &device_address, &start, &bytes};
  static_assert(std::size(attributes) == std::size(values));
  const CUresult result = driver.cuPointerGetAttributes(std::size(values), attributes, values, at);

  Allocation facts;
  facts.bytes_left = UINT64_MAX;
  if (result == CUDA_ERROR_INVALID_VALUE) return facts;  // the driver does not know this address
  if (result != CUDA_SUCCESS) return driver_error(driver, result, "cuPointerGetAttributes");

  const bool on_device = type == CU_MEMORYTYPE_DEVICE && managed == 0;
  // Pinned memory counts only if kernels may use the host's pointer.
  const bool mapped_host = type == CU_MEMORYTYPE_HOST && device_address == at;
  facts.device_accessible = on_device || managed != 0 || mapped_host;
  if (on_device) facts.device = ordinal;
  const bool has_range = start <= at && at - start < bytes;
  if (has_range && !(on_device && is_mapped_in_pieces(driver, address)))
    facts.bytes_left = bytes - (at - start);
  return facts;
}

}  // namespace normjit
