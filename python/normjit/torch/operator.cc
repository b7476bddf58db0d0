// The operators normjit::layer_norm and normjit::layer_norm_with_statistics on PyTorch's stable ABI: from
// tensors to one call of libnormjit on the current stream. _operator.py builds and connects it; the schemas,
// and all that is done by other operators (autograd, vmap, autocast), stand in _rules.py.
//
// The tests build it with NORMJIT_TORCH_ON_CPU, for tensors on the CPU and a libnormjit that computes there.
#include <dlfcn.h>
#include <normjit/c_api.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error(text); }

// What a call of PyTorch's own interface says: only whether it failed.
void require(AOTITorchError error, const char* what) {
  if (error != TORCH_SUCCESS) fail(std::string("normjit::layer_norm: ") + what + " failed");
}

// ---- libnormjit, as Python has found it

struct Connection {
  decltype(&normjit_layer_norm) layer_norm;
  decltype(&normjit_workspace_bytes) workspace_bytes;
  decltype(&normjit_status_message) status_message;
  decltype(&normjit_free) free;
  normjit_service* service;
};
Connection normjit{};

// Throws the sentence that came with a status.
[[noreturn]] void fail(normjit_status status, char* error) {
  std::string text = error ? error : normjit.status_message(status);
  normjit.free(error);
  if (status == NORMJIT_NOT_READY)
    text +=
        " Call the layer once with tensors like these before the capture begins, as the warm-up of "
        "torch.cuda.graph does.";
  fail(text);
}

// ---- The device

#ifdef NORMJIT_TORCH_ON_CPU

struct OnDevice {
  explicit OnDevice(int) {}
};
void* current_stream(int) { return nullptr; }
bool is_shared(void*) { return false; }
bool make_context_current(int) { return false; }
void connect_device() {}

#else

// Of PyTorch and of the driver; null where there is none.
struct Cuda {
  AOTITorchError (*current_stream)(int32_t, void**);
  int (*is_capturing)(void*, int*);
  int (*retain)(void**, int);
  int (*release)(int);
  int (*set_current)(void*);
};
Cuda cuda{};

template <class Function>
void find(Function*& function, const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY);  // stays open
  function = handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
}

void connect_device() {
  find(cuda.current_stream, "libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  find(cuda.is_capturing, "libcuda.so.1", "cuStreamIsCapturing");
  find(cuda.retain, "libcuda.so.1", "cuDevicePrimaryCtxRetain");
  find(cuda.release, "libcuda.so.1", "cuDevicePrimaryCtxRelease_v2");
  find(cuda.set_current, "libcuda.so.1", "cuCtxSetCurrent");
}

// Makes a device the current one for as long as it lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    int current = -1;
    require(aoti_torch_get_current_device_index(&current), "asking for the current device");
    if (current != device) guard_.emplace(device);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

void* current_stream(int device) {
  if (!cuda.current_stream) fail("normjit::layer_norm: this PyTorch has no CUDA");
  void* stream = nullptr;
  require(cuda.current_stream(device, &stream), "asking for the current stream");
  return stream;
}

// Whether launches on this stream may run at once: a graph's replays, and the stream that is another one in
// each thread.
bool is_shared(void* stream) {
  constexpr std::uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  int status = 0;
  return reinterpret_cast<std::uintptr_t>(stream) == kPerThread ||
         (cuda.is_capturing && cuda.is_capturing(stream, &status) == 0 && status != 0);
}

// A thread that has made no CUDA call has no context, and PyTorch sees no need to give it one where it has
// memory at hand. The primary context is there, as a tensor is.
bool make_context_current(int device) {
  void* context = nullptr;
  if (!cuda.retain || !cuda.release || !cuda.set_current || cuda.retain(&context, device) != 0) return false;
  const bool done = cuda.set_current(context) == 0;
  cuda.release(device);
  return done;
}

#endif

// ---- Workspaces

Tensor zeros(std::int64_t bytes, const Tensor& like) {
  int32_t type = 0, device = 0;
  require(aoti_torch_get_device_type(like.get(), &type), "asking for the device");
  require(aoti_torch_get_device_index(like.get(), &device), "asking for the device");
  const std::int64_t stride = 1;
  AtenTensorHandle made = nullptr;
  require(aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(), type, device, &made),
          "making a workspace: out of memory?");
  Tensor tensor(made);
  require(aoti_torch_zero_(made), "zeroing a workspace");
  return tensor;
}

// Every stream has its own, which lives as long as the process: launches follow each other there. A list that
// only grows, and needs no lock.
struct Workspace {
  int device;
  void* stream;
  std::int64_t bytes;
  Tensor memory;
  Workspace* next;
};
std::atomic<Workspace*> workspaces{nullptr};
constexpr std::int64_t kLeastWorkspace = 256 << 10;  // more than any plan asks for today, so one is enough

void* workspace_of(int device, void* stream, std::int64_t bytes, const Tensor& like) {
  for (const Workspace* w = workspaces.load(std::memory_order_acquire); w; w = w->next)
    if (w->device == device && w->stream == stream && w->bytes >= bytes) return w->memory.data_ptr();
  bytes = std::max(bytes, kLeastWorkspace);
  auto* made = new Workspace{device, stream, bytes, zeros(bytes, like), workspaces.load()};
  while (!workspaces.compare_exchange_weak(made->next, made)) {
  }
  return made->memory.data_ptr();
}

// How much a spec needs on a device: asked once a thread, as it takes longer than a launch.
std::int64_t workspace_bytes(const normjit_spec& spec, int device) {
  struct Known {
    normjit_spec spec{};
    int device = -1;
    std::int64_t bytes = 0;
  };
  constexpr std::size_t kPlaces = 64;
  thread_local std::array<Known, kPlaces> known;
  const auto mixed =
      static_cast<std::uint64_t>(spec.columns * 31 + spec.input * 7 + spec.affine + device * 3);
  Known& place = known[(mixed * 0x9E3779B97F4A7C15u) >> 58];
  const normjit_spec& had = place.spec;
  if (place.device == device && had.columns == spec.columns && had.epsilon == spec.epsilon &&
      had.scale == spec.scale && had.input == spec.input && had.output == spec.output &&
      had.weight == spec.weight && had.affine == spec.affine && had.activation == spec.activation &&
      had.statistics == spec.statistics)
    return place.bytes;
  std::size_t bytes = 0;
  char* error = nullptr;
  normjit_status status = normjit.workspace_bytes(normjit.service, &spec, &bytes, &error);
  if (status == NORMJIT_NO_CONTEXT && make_context_current(device)) {
    normjit.free(error);
    error = nullptr;
    status = normjit.workspace_bytes(normjit.service, &spec, &bytes, &error);
  }
  if (status != NORMJIT_OK) fail(status, error);
  place = {spec, device, static_cast<std::int64_t>(bytes)};
  return place.bytes;
}

// ---- Tensors

struct Type {
  int normjit = 0;  // 0: none that normjit has
  const char* name = "another type";
};
Type type_of(int32_t dtype) {
  if (dtype == aoti_torch_dtype_float32()) return {NORMJIT_F32, "Float"};
  if (dtype == aoti_torch_dtype_float16()) return {NORMJIT_F16, "Half"};
  if (dtype == aoti_torch_dtype_bfloat16()) return {NORMJIT_BF16, "BFloat16"};
  if (dtype == aoti_torch_dtype_float64()) return {NORMJIT_F64, "Double"};
  return {};
}
int32_t dtype_of(const Tensor& tensor) {
  int32_t dtype = 0;
  require(aoti_torch_get_dtype(tensor.get(), &dtype), "asking for the dtype");
  return dtype;
}

struct Shape {
  std::int64_t dims;
  const std::int64_t *sizes, *strides;
};
Shape shape_of(const Tensor& tensor) {
  std::int64_t dims = 0, *sizes = nullptr, *strides = nullptr;
  require(aoti_torch_get_dim(tensor.get(), &dims), "asking for the shape");
  require(aoti_torch_get_sizes(tensor.get(), &sizes), "asking for the shape");
  require(aoti_torch_get_strides(tensor.get(), &strides), "asking for the strides");
  return {dims, sizes, strides};
}

std::string text_of(const std::int64_t* sizes, std::int64_t dims) {
  std::string text = "[";
  for (std::int64_t i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// One dimension that stands for dimensions begin .. end - 1: `stride` elements lie between its elements.
// nullopt where no one dimension can.
struct Joined {
  std::int64_t size = 1, stride = 1;
};
std::optional<Joined> join(const Shape& shape, std::int64_t begin, std::int64_t end) {
  Joined joined;
  bool first = true;
  for (std::int64_t i = end - 1; i >= begin; --i) {
    const std::int64_t size = shape.sizes[i], stride = shape.strides[i];
    if (size == 1) continue;
    if (first)
      joined.stride = stride;
    else if (stride != joined.size * joined.stride)
      return {};
    first = false;
    joined.size *= size;
  }
  return joined;
}

Tensor contiguous(const Tensor& tensor) {
  std::array<StableIValue, 2> stack{from(tensor), from(aoti_torch_memory_format_contiguous_format())};
  require(aoti_torch_call_dispatcher("aten::contiguous", "", stack.data()),
          "making a tensor contiguous: out of memory?");
  return to<Tensor>(stack[0]);
}

// The rows of x, after a copy where they do not lie in memory as normjit wants them.
struct Rows {
  Tensor x;
  std::int64_t count, columns, stride;
};
Rows rows_of(Tensor x, std::int64_t normalized) {
  const Shape shape = shape_of(x);
  const std::int64_t outer = shape.dims - normalized;
  const auto columns = join(shape, outer, shape.dims), rows = join(shape, 0, outer);
  const bool packed = columns && (columns->size == 1 || columns->stride == 1);
  if (packed && rows) return {x, rows->size, columns->size, rows->size == 1 ? columns->size : rows->stride};
  std::int64_t count = 1, width = 1;
  for (std::int64_t i = 0; i < shape.dims; ++i) (i < outer ? count : width) *= shape.sizes[i];
  if (count == 0 || width == 0) return {x, count, width, width};
  return {contiguous(x), count, width, width};
}

// A contiguous tensor on x's device, with `ones` in place of the sizes of the last dimensions.
Tensor make(const Tensor& x, const Shape& shape, std::int64_t ones, int32_t dtype) {
  constexpr std::size_t kUsual = 8;
  std::array<std::int64_t, 2 * kUsual> near;
  std::vector<std::int64_t> far(shape.dims > static_cast<std::int64_t>(kUsual) ? 2 * shape.dims : 0);
  std::int64_t* sizes = far.empty() ? near.data() : far.data();
  std::int64_t* strides = sizes + shape.dims;
  std::int64_t stride = 1;
  for (std::int64_t i = shape.dims - 1; i >= 0; --i) {
    sizes[i] = i >= shape.dims - ones ? 1 : shape.sizes[i];
    strides[i] = stride;
    stride *= std::max<std::int64_t>(sizes[i], 1);
  }
  int32_t type = 0, device = 0;
  require(aoti_torch_get_device_type(x.get(), &type), "asking for the device");
  require(aoti_torch_get_device_index(x.get(), &device), "asking for the device");
  AtenTensorHandle made = nullptr;
  require(aoti_torch_empty_strided(shape.dims, sizes, strides, dtype, type, device, &made),
          "making the output: out of memory?");
  return Tensor(made);
}

// ---- The operators

struct Arguments {
  Tensor x;
  std::int64_t normalized;  // dimensions
  std::optional<Tensor> weight, bias;
  double epsilon;
  std::int64_t activation;
  double scale;
  std::optional<ScalarType> dtype;
};

Arguments take(StableIValue* stack) {
  return {to<Tensor>(stack[0]),
          to<std::int64_t>(stack[1]),
          to<std::optional<Tensor>>(stack[2]),
          to<std::optional<Tensor>>(stack[3]),
          to<double>(stack[4]),
          to<std::int64_t>(stack[5]),
          to<double>(stack[6]),
          to<std::optional<ScalarType>>(stack[7])};
}

// Weight or bias as normjit wants it, or the error that tells what is wrong with it.
Tensor parameter(const char* name, const Tensor& given, const Arguments& a, const Shape& x, int32_t dtype) {
  const Shape shape = shape_of(given);
  const std::int64_t* wanted = x.sizes + x.dims - a.normalized;
  if (shape.dims != a.normalized || !std::equal(wanted, wanted + a.normalized, shape.sizes))
    fail(std::string("Expected ") + name + " to be of same shape as normalized_shape, but got " + name +
         " of shape " + text_of(shape.sizes, shape.dims) +
         " and normalized_shape = " + text_of(wanted, a.normalized));
  int32_t types[2], devices[2];
  const Tensor* both[] = {&a.x, &given};
  for (int i = 0; i < 2; ++i) {
    require(aoti_torch_get_device_type(both[i]->get(), &types[i]), "asking for the device");
    require(aoti_torch_get_device_index(both[i]->get(), &devices[i]), "asking for the device");
  }
  if (types[0] != types[1] || devices[0] != devices[1])
    fail(std::string("Expected all tensors to be on the same device, but ") + name +
         " is not on the device of the input");
  if (dtype_of(given) != dtype)
    fail(std::string("expected scalar type ") + type_of(dtype).name + " but found " +
         type_of(dtype_of(given)).name + " (" + name + ")");
  const auto joined = join(shape, 0, shape.dims);
  return joined && (joined->size <= 1 || joined->stride == 1) ? given : contiguous(given);
}

void launch(const normjit_spec& spec, normjit_tensors& tensors, int device, const Tensor& x) {
  void* const stream = current_stream(device);
  std::optional<Tensor> own;  // a graph's pool keeps it for the node; its zeroing is captured, too
  if (const std::int64_t bytes = workspace_bytes(spec, device); bytes != 0) {
    if (is_shared(stream)) own = zeros(bytes, x);
    tensors.workspace = own ? own->data_ptr() : workspace_of(device, stream, bytes, x);
  }
  char* error = nullptr;
  normjit_status status = normjit.layer_norm(normjit.service, &spec, &tensors, stream, nullptr, &error);
  if (status == NORMJIT_NO_CONTEXT && make_context_current(device)) {
    normjit.free(error);
    error = nullptr;
    status = normjit.layer_norm(normjit.service, &spec, &tensors, stream, nullptr, &error);
  }
  if (status != NORMJIT_OK) fail(status, error);
}

struct Outputs {
  Tensor y;
  std::optional<Tensor> mean, rstd;
};

Outputs layer_norm(Arguments a, bool statistics) {
  const Shape shape = shape_of(a.x);
  if (a.normalized < 1 || a.normalized > shape.dims)
    fail("normjit::layer_norm: cannot normalize over the last " + std::to_string(a.normalized) +
         " dimensions of an input of size" + text_of(shape.sizes, shape.dims));
  const int32_t input = dtype_of(a.x);
  if (type_of(input).normjit == 0) fail("normjit::layer_norm: not implemented for this dtype of the input");
  if (a.bias && !a.weight) fail("normjit::layer_norm: a bias needs a weight");

  // Without a dtype all are the input's, as for PyTorch's own kernel on CUDA.
  const int32_t output = a.dtype ? to<int32_t>(from(*a.dtype)) : input;
  if (type_of(output).normjit == 0) fail("normjit::layer_norm: dtype must be a floating-point type");
  const int32_t weight_type = a.dtype && a.weight ? dtype_of(*a.weight) : input;
  if (a.weight) a.weight = parameter("weight", *a.weight, a, shape, weight_type);
  if (a.bias) a.bias = parameter("bias", *a.bias, a, shape, weight_type);

  int32_t device = 0;
  require(aoti_torch_get_device_index(a.x.get(), &device), "asking for the device");
  const OnDevice here(device);

  const bool wide = input == aoti_torch_dtype_float64() || output == aoti_torch_dtype_float64() ||
                    weight_type == aoti_torch_dtype_float64();
  const int32_t statistics_type = wide ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
  Outputs out{make(a.x, shape, 0, output), {}, {}};
  if (statistics) {
    out.mean = make(a.x, shape, a.normalized, statistics_type);
    out.rstd = make(a.x, shape, a.normalized, statistics_type);
  }
  const Rows rows = rows_of(a.x, a.normalized);
  if (rows.count == 0 || rows.columns == 0) return out;

  normjit_spec spec = NORMJIT_SPEC_INIT;
  spec.columns = rows.columns;
  spec.epsilon = a.epsilon;
  spec.scale = a.scale;
  spec.input = type_of(input).normjit;
  spec.output = type_of(output).normjit;
  spec.weight = type_of(weight_type).normjit;
  spec.affine = a.bias ? NORMJIT_WEIGHT_BIAS : a.weight ? NORMJIT_WEIGHT : NORMJIT_NO_AFFINE;
  spec.activation = static_cast<int32_t>(a.activation);
  spec.statistics = statistics;
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  tensors.x = rows.x.data_ptr();
  tensors.y = out.y.data_ptr();
  if (a.weight) tensors.weight = a.weight->data_ptr();
  if (a.bias) tensors.bias = a.bias->data_ptr();
  if (statistics) {
    tensors.mean = out.mean->data_ptr();
    tensors.rstd = out.rstd->data_ptr();
  }
  tensors.rows = rows.count;
  tensors.x_row_stride = rows.stride;
  launch(spec, tensors, device, a.x);
  return out;
}

void boxed_layer_norm(StableIValue* stack, uint64_t, uint64_t) {
  const Outputs out = layer_norm(take(stack), false);
  stack[0] = from(out.y);
}

void boxed_layer_norm_with_statistics(StableIValue* stack, uint64_t, uint64_t) {
  const Outputs out = layer_norm(take(stack), true);
  stack[0] = from(out.y);
  stack[1] = from(*out.mean);
  stack[2] = from(*out.rstd);
}

}  // namespace

// Before the first call of an operator. The service lives as long as the process.
extern "C" __attribute__((visibility("default"))) void normjit_torch_connect(const void* const* functions,
                                                                             void* service) {
  normjit.layer_norm = reinterpret_cast<decltype(normjit.layer_norm)>(functions[0]);
  normjit.workspace_bytes = reinterpret_cast<decltype(normjit.workspace_bytes)>(functions[1]);
  normjit.status_message = reinterpret_cast<decltype(normjit.status_message)>(functions[2]);
  normjit.free = reinterpret_cast<decltype(normjit.free)>(functions[3]);
  normjit.service = static_cast<normjit_service*>(service);
  connect_device();
}

#ifdef NORMJIT_TORCH_ON_CPU
STABLE_TORCH_LIBRARY_IMPL(normjit, CPU, m) {
#else
STABLE_TORCH_LIBRARY_IMPL(normjit, CUDA, m) {
#endif
  m.impl("layer_norm", &boxed_layer_norm);
  m.impl("layer_norm_with_statistics", &boxed_layer_norm_with_statistics);
}
