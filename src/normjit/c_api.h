/* The C interface of normjit: all that a runtime needs of the C++ one, for C11, for other languages and for
 * dlopen.
 *
 *   normjit_service *service;
 *   char *error = NULL;
 *   normjit_spec spec = NORMJIT_SPEC_INIT;
 *   spec.columns = 4096;
 *   spec.affine = NORMJIT_WEIGHT_BIAS;
 *   normjit_tensors tensors = NORMJIT_TENSORS_INIT;
 *   tensors.x.pointer = x, tensors.y.pointer = y, tensors.rows = rows;
 *   tensors.weight = weight, tensors.bias = bias;
 *   if (normjit_service_create(NULL, &service, &error) ||
 *       normjit_norm(service, &spec, &tensors, stream, NULL, &error)) {
 *     fprintf(stderr, "%s\n", error);
 *     normjit_free(error);
 *   }
 *
 * No CUDA header is needed: a stream is a CUstream or cudaStream_t, a tensor a device pointer. What a call
 * means in full (shapes, units, threads, streams, capture) stands in normjit/service.h at the method of the
 * same name; here stands what is different in C.
 *
 * Errors. A call that can fail returns a normjit_status, NORMJIT_OK (0) or one of normjit/result.h's codes,
 * and takes `char **error` last. It may be NULL. Else a failing call stores a sentence there that says what
 * was asked, what is allowed and what to do; the caller releases it with normjit_free. A successful call
 * leaves it alone. Nothing is thrown and nothing is printed. A result is written only where the call
 * succeeds. A pointer that may not be NULL and is, a number that is none of its enumeration and a switch that
 * is not 0 or 1 are answered with the argument's or member's name; a handle that was released is not noticed.
 * Sentences from below use the C++ names: Tensors::workspace is normjit_tensors.workspace. Where this process
 * has no memory left, the status is NORMJIT_OUT_OF_MEMORY, as it is where the device has none.
 *
 * Memory. What a call stores through a `char **` is a text that ends with a 0 byte, owned by the caller, who
 * releases it with normjit_free. What goes in is copied or used up before the call returns. Reports are JSON,
 * with the names that the tool's --json has; new names may be added.
 *
 * Structures begin with struct_size, the size that the caller's compiler knows: begin with the _INIT macro,
 * since all 0 is something else: epsilon and scale 0, device 0, strides 0. So a structure can grow at its
 * end, and both an older caller and an older library stay right: members that the caller does not have count
 * as 0, and a caller's member that this library does not know must be 0 (NORMJIT_BAD_ARGUMENT). Members that
 * are 0 have the meaning that their comment gives.
 *
 * Threads. As in C++: any number of threads may use one service and one kernel at once; creating and
 * releasing a handle is the business of one thread.
 */
#ifndef NORMJIT_C_API_H_
#define NORMJIT_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifndef NORMJIT_C_EXPORT
#define NORMJIT_C_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change that old callers would not survive; as the SOVERSION of the library. It speaks of
 * this header only: of the C++ one each 0.x may be another. */
#define NORMJIT_ABI_VERSION 1

/* The codes of normjit/result.h, where it stands what each means; normjit_status_message says it, too. */
typedef int32_t normjit_status;
enum {
  NORMJIT_OK = 0,
  NORMJIT_BAD_RANK = 100,
  NORMJIT_BAD_DIMENSION = 101,
  NORMJIT_TOO_MANY_COLUMNS = 102,
  NORMJIT_BAD_DTYPE = 103,
  NORMJIT_BAD_EPSILON = 104,
  NORMJIT_BAD_AFFINE = 105,
  NORMJIT_BAD_ACTIVATION = 106,
  NORMJIT_BAD_SCALE = 107,
  NORMJIT_BAD_SPEC_TEXT = 108,
  NORMJIT_BAD_COMBINATION = 109,
  NORMJIT_EMPTY_KERNEL = 200,
  NORMJIT_NULL_POINTER = 201,
  NORMJIT_UNEXPECTED_POINTER = 202,
  NORMJIT_MISALIGNED = 203,
  NORMJIT_BAD_ROWS = 204,
  NORMJIT_BAD_STRIDE = 205,
  NORMJIT_WORKSPACE_REQUIRED = 206,
  NORMJIT_WRONG_DEVICE = 207,
  NORMJIT_OUT_OF_BOUNDS = 208,
  NORMJIT_OVERLAP = 209,
  NORMJIT_UNKNOWN_ARCH = 300,
  NORMJIT_ILLEGAL_PLAN = 301,
  NORMJIT_BAD_TEMPLATE = 302,
  NORMJIT_NO_COMPILER = 400,
  NORMJIT_COMPILE_FAILED = 401,
  NORMJIT_COMPILER_TOO_OLD = 402,
  NORMJIT_NO_DRIVER = 500,
  NORMJIT_DRIVER_TOO_OLD = 501,
  NORMJIT_NO_DEVICE = 502,
  NORMJIT_NO_CONTEXT = 503,
  NORMJIT_LOAD_FAILED = 504,
  NORMJIT_DRIVER_ERROR = 505,
  NORMJIT_OUT_OF_MEMORY = 506,
  NORMJIT_NOT_RESIDENT = 507,
  NORMJIT_FORKED_AFTER_CUDA_INIT = 508,
  NORMJIT_CACHE_IO = 600,
  NORMJIT_BAD_ARGUMENT = 700,
  NORMJIT_NOT_CACHED = 800,
  NORMJIT_NOT_READY = 801
};

/* Values of enumerations begin with 1: 0 is "the default". */
enum { NORMJIT_LAYER = 1, NORMJIT_RMS = 2 };                                  /* norm */
enum { NORMJIT_F16 = 1, NORMJIT_BF16 = 2, NORMJIT_F32 = 3, NORMJIT_F64 = 4 }; /* dtypes */
enum { NORMJIT_NO_RESIDUAL = 1, NORMJIT_RESIDUAL_BEFORE = 2 };                /* residual */
enum { NORMJIT_NO_AFFINE = 1, NORMJIT_WEIGHT = 2, NORMJIT_WEIGHT_BIAS = 3 };  /* affine */
enum {
  NORMJIT_NO_ACTIVATION = 1,
  NORMJIT_RELU = 2,
  NORMJIT_GELU = 3,
  NORMJIT_GELU_TANH = 4,
  NORMJIT_SILU = 5
};
enum { NORMJIT_EAGER = 1, NORMJIT_LAZY = 2, NORMJIT_CACHED_ONLY = 3 };          /* modes */
enum { NORMJIT_THAWED = 1, NORMJIT_FROZEN_WARN = 2, NORMJIT_FROZEN_ERROR = 3 }; /* normjit_freeze */
enum { NORMJIT_LOG_DEBUG = 1, NORMJIT_LOG_INFO = 2, NORMJIT_LOG_WARN = 3, NORMJIT_LOG_ERROR = 4 };
enum { NORMJIT_YES = 1, NORMJIT_NO = 2 }; /* switches */

typedef struct normjit_service normjit_service;
typedef struct normjit_kernel normjit_kernel;

/* ---- The library ---- */

NORMJIT_C_EXPORT uint32_t normjit_abi_version(void); /* NORMJIT_ABI_VERSION of the library */
NORMJIT_C_EXPORT const char* normjit_version(void);  /* "0.2.0" */
/* "NotReady"; "Unknown" for a number that is none. */
NORMJIT_C_EXPORT const char* normjit_status_name(normjit_status status);
/* What a status means and what to do; a static text, never NULL. */
NORMJIT_C_EXPORT const char* normjit_status_message(normjit_status status);
/* Releases a text. NULL is allowed. */
NORMJIT_C_EXPORT void normjit_free(char* text);

/* ---- What to compute (normjit/spec.h) ---- */

typedef struct normjit_spec {
  size_t struct_size;
  int64_t columns;    /* elements a row, 1 .. 2^31 - 1 */
  double epsilon;     /* >= 0; taken as it stands, 0 too */
  double scale;       /* taken as it stands, 0 too */
  int32_t norm;       /* 0: NORMJIT_LAYER */
  int32_t input;      /* dtype of x; 0: NORMJIT_F32 */
  int32_t output;     /* dtype of y; 0: input's */
  int32_t weight;     /* dtype of weight and bias; 0: input's */
  int32_t residual;   /* added to x in front of the norm; 0: NORMJIT_NO_RESIDUAL */
  int32_t sum;        /* 1: also x + residual, in the input dtype */
  int32_t affine;     /* 0: NORMJIT_NO_AFFINE */
  int32_t activation; /* 0: NORMJIT_NO_ACTIVATION */
  int32_t statistics; /* 1: also mean and rstd of each row; of rms, rstd alone */
  int32_t reserved;   /* 0 */
} normjit_spec;
#define NORMJIT_SPEC_INIT \
  { sizeof(normjit_spec), 0, 1e-5, 1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* The product of a PyTorch-style normalized_shape of 1 to 8 dimensions. */
NORMJIT_C_EXPORT normjit_status normjit_columns_of(const int64_t* shape, size_t rank, int64_t* columns,
                                                   char** error);
/* "layernorm/cols=4096/f16/eps=1e-05/wb" to a canonical spec. spec->struct_size must be set. */
NORMJIT_C_EXPORT normjit_status normjit_spec_parse(const char* text, normjit_spec* spec, char** error);
/* Validates a spec; its canonical text, unless `text` is NULL. */
NORMJIT_C_EXPORT normjit_status normjit_spec_text(const normjit_spec* spec, char** text, char** error);

/* ---- A service (normjit::Service) ---- */

/* Called on the thread that has something to say, which may be one of normjit's own. Thread-safe, must return
 * (no exception, no longjmp) and must not call back into the same service; texts live as long as the call.
 * `user` must live until the service and its kernels are gone. */
typedef void (*normjit_log_callback)(void* user, int32_t level, const char* message);
typedef struct normjit_event {
  size_t struct_size;
  const char* kind; /* "missed", "compiled", ... of normjit/telemetry.h */
  const char* spec;
  const char* plan;
  const char* arch;
  const char* detail;
  double milliseconds;
} normjit_event;
typedef void (*normjit_event_callback)(void* user, const normjit_event* event);

/* What is 0 or NULL here is as the environment says (normjit::Options::from_environment), which is read once,
 * by normjit_service_create; with ignore_environment it is as in a default normjit::Options. */
typedef struct normjit_options {
  size_t struct_size;
  int32_t ignore_environment;  /* NORMJIT_YES or 0 */
  int32_t mode;                /* NORMJIT_EAGER, ... */
  int32_t shared_cache;        /* NORMJIT_YES, NORMJIT_NO */
  int32_t exact_toolchain;     /* NORMJIT_YES, NORMJIT_NO */
  const char* cache_directory; /* "": keep kernels in memory only */
  const char* layers;          /* directories and packs, separated by colons; "": none */
  int64_t max_cache_bytes;     /* -1: without bound */
  const char* miss_log;        /* "": none */
  const char* compiler_path;
  const char* cuda_home;
  const char* template_directory;
  normjit_log_callback log; /* in the place of the built-in log */
  void* log_user;
  normjit_event_callback on_event;
  void* event_user;
} normjit_options;
#define NORMJIT_OPTIONS_INIT \
  { sizeof(normjit_options), 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* options may be NULL: all as the environment says. Touches no file and no GPU. */
NORMJIT_C_EXPORT normjit_status normjit_service_create(const normjit_options* options,
                                                       normjit_service** service, char** error);
/* Kernels that were prepared stay valid. NULL is allowed. */
NORMJIT_C_EXPORT void normjit_service_destroy(normjit_service* service);

/* ---- Launching ---- */

/* Where the rows of an operand lie: row r begins (r / n) * outer + (r % n) * inner elements behind `pointer`.
 * n must be 0 or 1 for now, both of which mean 1: rows are `outer` elements apart, and inner has no meaning.
 * outer -1: contiguous rows. A row stride of 0, which only inputs may have, is one row for all. */
typedef struct normjit_input_rows {
  const void* pointer;
  int64_t n;
  int64_t outer;
  int64_t inner;
} normjit_input_rows;
typedef struct normjit_output_rows {
  void* pointer;
  int64_t n;
  int64_t outer;
  int64_t inner;
} normjit_output_rows;
#define NORMJIT_CONTIGUOUS_ROWS \
  { NULL, 1, -1, 0 }

/* The operands of a launch (normjit::Tensors); what the spec does not have stays NULL. */
typedef struct normjit_tensors {
  size_t struct_size;
  normjit_input_rows x;        /* [rows, columns], input dtype */
  normjit_output_rows y;       /* [rows, columns], output dtype; may be x */
  const void* weight;          /* [columns], weight dtype */
  const void* bias;            /* [columns], weight dtype */
  void* mean;                  /* [rows], f32, or f64 for f64 */
  void* rstd;                  /* [rows], as mean */
  int64_t rows;                /* 0 is a success that launches nothing */
  void* workspace;             /* normjit_workspace_bytes, zeroed once, one per concurrent launch; or NULL */
  normjit_input_rows residual; /* [rows, columns], input dtype */
  normjit_output_rows sum;     /* [rows, columns], input dtype; may be residual */
} normjit_tensors;
#define NORMJIT_TENSORS_INIT                                                                              \
  {                                                                                                       \
    sizeof(normjit_tensors), NORMJIT_CONTIGUOUS_ROWS, NORMJIT_CONTIGUOUS_ROWS, NULL, NULL, NULL, NULL, 0, \
        NULL, NORMJIT_CONTIGUOUS_ROWS, NORMJIT_CONTIGUOUS_ROWS                                            \
  }

/* How to launch (normjit::LaunchOptions); NULL wherever it is taken: all 0. */
typedef struct normjit_launch_options {
  size_t struct_size;
  int32_t overlap_previous; /* 1: programmatic dependent launch */
  int32_t miss_in_capture;  /* 1: make the kernel ready even in a stream that is being captured */
  int32_t* driver_result;   /* NULL, or where normjit_kernel_launch stores the CUresult of a launch that the
                               driver refused; the one-call form names it in its sentence */
} normjit_launch_options;
#define NORMJIT_LAUNCH_OPTIONS_INIT \
  { sizeof(normjit_launch_options), 0, 0, NULL }

/* Operands, for normjit_node_offset (normjit::Operand). */
enum {
  NORMJIT_OPERAND_X = 1,
  NORMJIT_OPERAND_RESIDUAL = 2,
  NORMJIT_OPERAND_WEIGHT = 3,
  NORMJIT_OPERAND_BIAS = 4,
  NORMJIT_OPERAND_Y = 5,
  NORMJIT_OPERAND_SUM = 6,
  NORMJIT_OPERAND_MEAN = 7,
  NORMJIT_OPERAND_RSTD = 8,
  NORMJIT_OPERAND_WORKSPACE = 256
};

/* Finds or makes the kernel for these tensors on the current context's device, and launches it. */
NORMJIT_C_EXPORT normjit_status normjit_norm(normjit_service* service, const normjit_spec* spec,
                                             const normjit_tensors* tensors, void* stream,
                                             const normjit_launch_options* options, char** error);
/* normjit_norm under its older name. */
NORMJIT_C_EXPORT normjit_status normjit_layer_norm(normjit_service* service, const normjit_spec* spec,
                                                   const normjit_tensors* tensors, void* stream,
                                                   const normjit_launch_options* options, char** error);
/* Workspace that suffices for every launch of this spec by normjit_norm on the current context's device;
 * mostly 0. */
NORMJIT_C_EXPORT normjit_status normjit_workspace_bytes(normjit_service* service, const normjit_spec* spec,
                                                        size_t* bytes, char** error);

/* For which launches a kernel is wanted (normjit::PrepareOptions). */
typedef struct normjit_prepare_options {
  size_t struct_size;
  int32_t device;            /* CUDA ordinal; -1: the current context's */
  int32_t pointer_alignment; /* bytes; 0: 16 */
  int64_t rows_hint;         /* about how many rows; 0: many */
  int64_t x_row_stride;      /* elements; -1: columns */
  int64_t y_row_stride;      /* elements; -1: columns */
  const char* plan; /* this very plan, as normjit_kernel_describe and the tool's `show` write it; NULL: the
                       best one */
} normjit_prepare_options;
#define NORMJIT_PREPARE_OPTIONS_INIT \
  { sizeof(normjit_prepare_options), -1, 0, 0, -1, -1, NULL }

/* options may be NULL: as the macro. */
NORMJIT_C_EXPORT normjit_status normjit_prepare(normjit_service* service, const normjit_spec* spec,
                                                const normjit_prepare_options* options,
                                                normjit_kernel** kernel, char** error);
/* Allocates nothing, takes no lock, never synchronises; one kernel node in a graph. normjit_status_message
 * tells what the status means. */
NORMJIT_C_EXPORT normjit_status normjit_kernel_launch(const normjit_kernel* kernel,
                                                      const normjit_tensors* tensors, void* stream,
                                                      const normjit_launch_options* options);
/* Asks the driver about each pointer, too. */
NORMJIT_C_EXPORT normjit_status normjit_kernel_check(const normjit_kernel* kernel,
                                                     const normjit_tensors* tensors, char** error);
NORMJIT_C_EXPORT size_t normjit_kernel_workspace_bytes(const normjit_kernel* kernel);
/* Where the pointer of an operand lies in the block that kernelParams[0] of the captured launch's kernel node
 * points to, in bytes; the pointer may be replaced there (normjit::Kernel::node_offset). */
NORMJIT_C_EXPORT normjit_status normjit_node_offset(const normjit_kernel* kernel, int32_t operand,
                                                    size_t* offset, char** error);
/* {"spec": ..., "plan": ..., "device": 0, "arch": "sm_90", "origin": ..., "fallback": false,
 *  "workspace_bytes": 0} */
NORMJIT_C_EXPORT normjit_status normjit_kernel_describe(const normjit_kernel* kernel, char** json,
                                                        char** error);
/* Launches that are under way are not disturbed. NULL is allowed. */
NORMJIT_C_EXPORT void normjit_kernel_release(normjit_kernel* kernel);

/* ---- Operation ---- */

/* NORMJIT_FROZEN_ERROR: from now on a kernel that no cache has is NORMJIT_NOT_CACHED. */
NORMJIT_C_EXPORT normjit_status normjit_freeze(normjit_service* service, int32_t when_missing, char** error);
NORMJIT_C_EXPORT void normjit_wait_for_compiles(normjit_service* service);
/* normjit::Counters as JSON. */
NORMJIT_C_EXPORT normjit_status normjit_counters(normjit_service* service, char** json, char** error);
/* What normjit finds on this machine, as `normjit doctor --json` without its host_compiler. Opens libnvrtc
 * and initialises the driver. */
NORMJIT_C_EXPORT normjit_status normjit_environment(normjit_service* service, char** json, char** error);

/* Texts: `specs` are spec texts, `archs` names such as "sm_90". */
typedef struct normjit_kernel_set {
  size_t struct_size;
  const char* const* specs;
  size_t spec_count;
  const char* const* archs; /* or "native": the GPUs here, "all-major", "all" */
  size_t arch_count;
} normjit_kernel_set;
#define NORMJIT_KERNEL_SET_INIT \
  { sizeof(normjit_kernel_set), NULL, 0, NULL, 0 }

/* After each kernel, from one thread at a time: its spec, and what became of it ("cached", "compiled",
 * "failed"). */
typedef void (*normjit_progress_callback)(void* user, const char* spec, const char* outcome, int32_t done,
                                          int32_t total);

/* Puts every kernel of the set into the cache. Needs no GPU. jobs: so many kernels are compiled at once, 0
 * for one a core; from the third on in child processes, which end before the call returns, where the program
 * normjit-compile is installed. dry_run 1: only look. progress may be NULL. The report is that of `normjit
 * prebuild --json`; kernels that failed are counted there. */
NORMJIT_C_EXPORT normjit_status normjit_prebuild(normjit_service* service, const normjit_kernel_set* set,
                                                 int32_t jobs, int32_t dry_run,
                                                 normjit_progress_callback progress, void* user, char** json,
                                                 char** error);
/* Writes the set's kernels, or all with NULL, from cache directory and layers into one file (*.njp). */
NORMJIT_C_EXPORT normjit_status normjit_export_pack(normjit_service* service, const char* path,
                                                    const normjit_kernel_set* set, char** json, char** error);
/* Copies the sound entries of directories and packs, separated by colons, into the cache directory. */
NORMJIT_C_EXPORT normjit_status normjit_import(normjit_service* service, const char* sources, char** json,
                                               char** error);
/* Every entry of cache directory and layers. */
NORMJIT_C_EXPORT normjit_status normjit_entries(normjit_service* service, char** json, char** error);
/* Checks every entry; quarantine 1: moves damaged ones out of the way. */
NORMJIT_C_EXPORT normjit_status normjit_verify(normjit_service* service, int32_t quarantine, char** json,
                                               char** error);
/* Trims the cache directory to max_bytes (0 removes all; -1: the service's own bound). */
NORMJIT_C_EXPORT normjit_status normjit_prune(normjit_service* service, int64_t max_bytes, int32_t dry_run,
                                              char** json, char** error);
/* Where the kernels of a spec on an architecture are, or why they would be compiled. */
NORMJIT_C_EXPORT normjit_status normjit_why(normjit_service* service, const normjit_spec* spec,
                                            const char* arch, char** json, char** error);
/* The CUDA C++ of the kernel for about so many rows (0: many) on an architecture; plan as in
 * normjit_prepare_options. */
NORMJIT_C_EXPORT normjit_status normjit_render(normjit_service* service, const normjit_spec* spec,
                                               const char* arch, int64_t rows_hint, const char* plan,
                                               char** source, char** error);
/* Keeps the plan that was measured to be the fastest for about so many rows on the current context's device
 * and 16-byte aligned tensors (normjit::Service::remember). */
NORMJIT_C_EXPORT normjit_status normjit_remember(normjit_service* service, const normjit_spec* spec,
                                                 int64_t rows, const char* plan, char** error);

#ifdef __cplusplus
}
#endif

#endif /* NORMJIT_C_API_H_ */
