// SPDX-License-Identifier: Apache-2.0
/* The C interface of normjit: everything that a runtime needs of the C++ one, for C11, other languages and
 * dlopen.
 *
 *   normjit_service *service;
 *   char *error = NULL;
 *   normjit_spec spec = NORMJIT_SPEC_INIT;
 *   spec.columns = 4096;
 *   spec.affine = NORMJIT_WEIGHT_BIAS;
 *   normjit_tensors tensors = NORMJIT_TENSORS_INIT;
 *   tensors.x.pointer = x, tensors.y.pointer = y, tensors.rows = rows;
 *   tensors.weight.pointer = weight, tensors.bias.pointer = bias;
 *   if (normjit_service_create(NULL, &service, &error) ||
 *       normjit_norm(service, &spec, &tensors, stream, NULL, &error)) {
 *     fprintf(stderr, "%s\n", error);
 *     normjit_free(error);
 *   }
 *
 * No CUDA header is needed: a stream is a CUstream or cudaStream_t, a tensor is a device pointer. For the
 * full contract of a call (shapes, units, threads, streams, capture) see the method of the same name in
 * normjit/service.h; this header documents only what differs in C.
 *
 * Errors. A call that can fail returns a normjit_status: NORMJIT_OK (0) or one of normjit/result.h's codes.
 * Its last argument is `char **error`, which may be NULL. Otherwise a failing call stores a sentence there
 * that says what was asked, what is allowed and what to do; the caller releases it with normjit_free. A
 * successful call does not write it. Nothing is thrown and nothing is printed. Results are written only by
 * calls that succeed. The error names the argument or member for a pointer that must not be NULL, a number
 * outside its enumeration, and a switch that is not 0 or 1. A handle that was released is not detected.
 * Sentences of the C++ library use C++ names: Tensors::workspace is normjit_tensors.workspace.
 * NORMJIT_OUT_OF_MEMORY stands for exhausted memory of the device, and of this process.
 *
 * Memory. A call stores through a `char **` a text that ends with a 0 byte; the caller owns it and releases
 * it with normjit_free. A call copies the texts and structures that it keeps. Reports are JSON with the names
 * of the tool's --json; names may be added.
 *
 * Structures begin with struct_size, their size in the caller's header. Initialise them with the _INIT macro:
 * all 0 means epsilon and scale 0, device 0, strides 0. A structure may grow at its end, and callers and
 * libraries of different versions stay compatible: members that the caller does not have count as 0, and a
 * caller's member that this library does not know must be 0 (else NORMJIT_BAD_ARGUMENT). The comment of a
 * member says what 0 means.
 *
 * Threads. As in C++: any number of threads may use one service and one kernel at once; creating or
 * releasing a handle must not overlap with another use of it.
 */
#ifndef NORMJIT_C_API_H_
#define NORMJIT_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "normjit/remote.h"

#ifndef NORMJIT_C_EXPORT
#define NORMJIT_C_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change that breaks older callers; it is the SOVERSION of the library. It covers this
 * header only: the C++ interface may change with each 0.x. */
#define NORMJIT_ABI_VERSION 1

/* The codes of normjit/result.h, which documents them; normjit_status_message returns what each means. */
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
  NORMJIT_BAD_PLANE = 210,
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
  NORMJIT_UNTRUSTED = 601,
  NORMJIT_BAD_ARGUMENT = 700,
  NORMJIT_NOT_CACHED = 800,
  NORMJIT_NOT_READY = 801
};

/* Values of enumerations begin with 1; 0 is "the default". */
enum { NORMJIT_LAYER = 1, NORMJIT_RMS = 2 }; /* norm */
/* dtypes; those of 8 and 4 bits for y alone, E8M0 for scales alone. An element of E2M1 is a byte with two
 * columns. */
enum {
  NORMJIT_F16 = 1,
  NORMJIT_BF16 = 2,
  NORMJIT_F32 = 3,
  NORMJIT_F64 = 4,
  NORMJIT_E4M3 = 5,
  NORMJIT_E5M2 = 6,
  NORMJIT_S8 = 7,
  NORMJIT_E2M1 = 8,
  NORMJIT_E8M0 = 9
};
enum { NORMJIT_NO_GATE = 1, NORMJIT_GATE_BEFORE = 2, NORMJIT_GATE_AFTER = 3 };
enum { /* the gradients that are written; dx with dgate, dmod_scale and dmod_shift */
       NORMJIT_NEED_ALL = 1,
       NORMJIT_NEED_DX = 2,
       NORMJIT_NEED_DX_DWEIGHT = 3,
       NORMJIT_NEED_DX_DBIAS = 4,
       NORMJIT_NEED_DWEIGHT_DBIAS = 5,
       NORMJIT_NEED_DWEIGHT = 6,
       NORMJIT_NEED_DBIAS = 7
};
enum { /* gate functions */
       NORMJIT_NO_GATE_FUNCTION = 1,
       NORMJIT_GATE_SILU = 2,
       NORMJIT_GATE_SIGMOID = 3,
       NORMJIT_GATE_TANH = 4
};
enum { NORMJIT_NO_MODULATION = 1, NORMJIT_MOD_SCALE = 2, NORMJIT_MOD_SCALE_SHIFT = 3 };
enum { NORMJIT_NO_RESIDUAL = 1, NORMJIT_RESIDUAL_BEFORE = 2, NORMJIT_RESIDUAL_AFTER = 3 };
enum {
  NORMJIT_NO_ROUNDING = 1,
  NORMJIT_ROUND_SUM = 2,
  NORMJIT_ROUND_NORM = 3,
  NORMJIT_ROUND_SUM_NORM = 4,
  NORMJIT_ROUND_Y = 5,
  NORMJIT_ROUND_SUM_Y = 6,
  NORMJIT_ROUND_NORM_Y = 7,
  NORMJIT_ROUND_SUM_NORM_Y = 8
};
enum {
  NORMJIT_NO_QUANTIZATION = 1,
  NORMJIT_QUANTIZE_BY_TENSOR = 2,
  NORMJIT_QUANTIZE_BY_ROW = 3,
  NORMJIT_QUANTIZE_BY_BLOCK_16 = 4,
  NORMJIT_QUANTIZE_BY_BLOCK_32 = 5,
  NORMJIT_QUANTIZE_BY_BLOCK_64 = 6,
  NORMJIT_QUANTIZE_BY_BLOCK_128 = 7
};
enum { /* scale formats, of blocks */
       NORMJIT_SCALE_F32 = 1,
       NORMJIT_SCALE_POWER_OF_TWO = 2,
       NORMJIT_SCALE_E8M0 = 3,
       NORMJIT_SCALE_E4M3 = 4
};
enum { /* scale layouts, of blocks */
       NORMJIT_SCALE_LAYOUT_ROWS = 1,
       NORMJIT_SCALE_LAYOUT_COLUMNS = 2,
       NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS = 3,
       NORMJIT_SCALE_LAYOUT_SWIZZLED = 4
};
enum { NORMJIT_NO_ALSO = 1, NORMJIT_ALSO_F16 = 2, NORMJIT_ALSO_BF16 = 3, NORMJIT_ALSO_F32 = 4 };
enum { NORMJIT_NO_AFFINE = 1, NORMJIT_WEIGHT = 2, NORMJIT_WEIGHT_BIAS = 3 }; /* affine */
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
/* "NotReady"; "Unknown" for a number that is no status. */
NORMJIT_C_EXPORT const char* normjit_status_name(normjit_status status);
/* What a status means and what to do; a static text, never NULL. */
NORMJIT_C_EXPORT const char* normjit_status_message(normjit_status status);
/* Releases a text. NULL is allowed. */
NORMJIT_C_EXPORT void normjit_free(char* text);

/* ---- What to compute (normjit/spec.h) ---- */

typedef struct normjit_spec {
  size_t struct_size;
  int64_t columns;          /* elements a row, 1 .. 2^31 - 1 */
  double epsilon;           /* >= 0; 0 is not replaced by a default */
  double scale;             /* 0 is not replaced by a default */
  int32_t norm;             /* 0: NORMJIT_LAYER */
  int32_t input;            /* dtype of x; 0: NORMJIT_F32 */
  int32_t output;           /* dtype of y and dy; 0: input's */
  int32_t weight;           /* dtype of weight, bias, in_bias and tables; 0: input's */
  int32_t residual;         /* where it is added; 0: NORMJIT_NO_RESIDUAL */
  int32_t sum;              /* 1: also what is normalized, in the residual type */
  int32_t affine;           /* 0: NORMJIT_NO_AFFINE */
  int32_t activation;       /* 0: NORMJIT_NO_ACTIVATION */
  int32_t statistics;       /* 1: also mean and rstd of each row; rms: rstd only. backward: they are given */
  int32_t residual_type;    /* dtype of residual, sum and dsum; 0: input's */
  int32_t in_bias;          /* 1: a vector that is added to x */
  int32_t rounding;         /* 0: NORMJIT_NO_ROUNDING */
  int32_t weight_offset;    /* 1: the weight is added to 1 */
  int32_t affine_rows;      /* 1: weight and bias for each row */
  int32_t modulation_type;  /* dtype of gate, mod_scale and mod_shift; 0: input's */
  int32_t gate;             /* where it multiplies; 0: NORMJIT_NO_GATE */
  int32_t gate_function;    /* 0: NORMJIT_NO_GATE_FUNCTION */
  int32_t gate_table;       /* 1: a vector is added to each row of the gate */
  int32_t modulation;       /* 0: NORMJIT_NO_MODULATION */
  int32_t plain_modulation; /* 1: 1 is not added to the scale of the modulation */
  int32_t modulation_table; /* 1: vectors are added to each row of the modulation */
  int32_t channels_first;   /* 1: x, residual, y and sum are [samples, columns, plane] */
  int32_t quantization;     /* what y is divided by; 0: NORMJIT_NO_QUANTIZATION */
  int32_t inverse_scale;    /* 1: tensor_scale is the inverse of what y is divided by */
  int32_t upper_bound;      /* 1: the largest magnitude of a row counts as upper_bound at most */
  int32_t scale_format;     /* of block_scale; 0: NORMJIT_SCALE_F32 */
  int32_t scale_layout;     /* of block_scale; 0: NORMJIT_SCALE_LAYOUT_ROWS */
  int32_t also;             /* dtype of the result before its quantization, written too; 0: NORMJIT_NO_ALSO */
  int32_t amax;             /* 1: also the largest magnitude of that result */
  int32_t backward;         /* 1: the gradients of such a norm */
  int32_t dsum;             /* 1: backward: a gradient of the written sum is added to dx */
  int32_t gradient_type;    /* dtype of dweight and dbias; 0: input's */
  int32_t need;             /* backward: which gradients are written; 0: NORMJIT_NEED_ALL */
  int32_t reserved;         /* 0 */
} normjit_spec;
#define NORMJIT_SPEC_INIT                                                                                    \
  {                                                                                                          \
    sizeof(normjit_spec), 0, 1e-5, 1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                                                      \
  }

/* The product of a PyTorch-style normalized_shape of 1 to 8 dimensions. */
NORMJIT_C_EXPORT normjit_status normjit_columns_of(const int64_t* shape, size_t rank, int64_t* columns,
                                                   char** error);
/* Parses "layernorm/cols=4096/f16/eps=1e-05/wb" to a canonical spec. spec->struct_size must be set. */
NORMJIT_C_EXPORT normjit_status normjit_spec_parse(const char* text, normjit_spec* spec, char** error);
/* Validates a spec, and stores its canonical text unless `text` is NULL. */
NORMJIT_C_EXPORT normjit_status normjit_spec_text(const normjit_spec* spec, char** text, char** error);
/* The dimensions of block_scale for so many rows, padding included, in its elements (see normjit_tensors):
 * [rows, K], [K, R4], [K4 / 4, R4, 4] or [R128 / 128, K4 / 4, 512]. Stores *rank of them, 2 or 3, in shape,
 * which has room for 3; 0 if the spec has no scales of blocks. */
NORMJIT_C_EXPORT normjit_status normjit_block_scale_shape(const normjit_spec* spec, int64_t rows,
                                                          int64_t* shape, size_t* rank, char** error);

/* ---- A service (normjit::Service) ---- */

/* Called on the thread that logs, which may be one of normjit's own. Must be thread-safe, must return (no
 * exception, no longjmp) and must not call back into the same service. The texts are valid during the call.
 * `user` must outlive the service and its kernels. */
typedef void (*normjit_log_callback)(void* user, int32_t level, const char* message);
enum { NORMJIT_INSTANT = 1, NORMJIT_BEGIN = 2, NORMJIT_END = 3 }; /* phases of events */
typedef struct normjit_event {
  size_t struct_size;
  const char* kind; /* "missed", "compiled", ... of normjit/telemetry.h; more may come */
  const char* spec;
  const char* plan;
  const char* arch;
  const char* detail;
  double milliseconds;
  int32_t phase; /* NORMJIT_BEGIN of something, its NORMJIT_END on the same thread, or neither */
} normjit_event;
typedef void (*normjit_event_callback)(void* user, const normjit_event* event);

/* A member that is 0 or NULL is taken from the environment (normjit::Options::from_environment), which
 * normjit_service_create reads once; with ignore_environment, from a default normjit::Options. */
typedef struct normjit_options {
  size_t struct_size;
  int32_t ignore_environment;  /* NORMJIT_YES or 0 */
  int32_t mode;                /* NORMJIT_EAGER, ... */
  int32_t shared_cache;        /* NORMJIT_YES, NORMJIT_NO */
  int32_t exact_toolchain;     /* NORMJIT_YES, NORMJIT_NO */
  int32_t batch_invariant;     /* NORMJIT_YES, NORMJIT_NO */
  int32_t remote_unsigned;     /* NORMJIT_YES, NORMJIT_NO */
  const char* cache_directory; /* "": keep kernels in memory only */
  const char* layers;          /* directories and packs, separated by colons; "": none */
  int64_t max_cache_bytes;     /* -1: no bound */
  const char* miss_log;        /* "": none */
  const char* compiler_path;
  const char* cuda_home;
  const char* template_directory;
  normjit_log_callback log; /* replaces the built-in log */
  void* log_user;
  normjit_event_callback on_event;
  void* event_user;
  const char* remote;                 /* a URL; "": none */
  const normjit_remote* remote_store; /* in place of a URL; copied, and closed with the service */
  const char* trust;       /* public keys and their files, separated by spaces or commas; "": none */
  const char* sign_key;    /* the file of a secret key; "": none */
  const char* remote_pack; /* the URL of a pack that is fetched; "": none */
} normjit_options;
#define NORMJIT_OPTIONS_INIT                                                                            \
  {                                                                                                     \
    sizeof(normjit_options), 0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL                                                              \
  }

/* options NULL: everything is taken from the environment. Touches no file and no GPU. */
NORMJIT_C_EXPORT normjit_status normjit_service_create(const normjit_options* options,
                                                       normjit_service** service, char** error);
/* Kernels that were prepared stay valid. NULL is allowed. */
NORMJIT_C_EXPORT void normjit_service_destroy(normjit_service* service);

/* ---- Launching ---- */

/* The rows of an operand: row r begins (r / n) * outer + (r % n) * inner elements after `pointer`
 * (normjit/tensors.h). With n = 1, or 0, rows are `outer` elements apart, and inner has no meaning. outer -1:
 * contiguous rows; outer 0, for inputs only: the same row. With channels_first x, residual, y and sum have
 * samples `outer` elements apart, n 0 or 1, and inner 0. */
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

/* The operands of a launch (normjit::Tensors); those that the spec does not have are NULL.
 *
 * block_scale has K = columns / block scales for each row. Their elements are f32 with NORMJIT_SCALE_F32 and
 * NORMJIT_SCALE_POWER_OF_TWO, bytes with NORMJIT_SCALE_E8M0 and NORMJIT_SCALE_E4M3. R4 and R128 are the rows
 * up to a multiple of 4 and of 128, K4 likewise; what is beyond the rows and K is written as zero.
 *   NORMJIT_SCALE_LAYOUT_ROWS            rows * K elements; that of block k of row r is number r * K + k
 *   NORMJIT_SCALE_LAYOUT_COLUMNS         R4 * K elements; number k * R4 + r
 *   NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS  R4 * K4 bytes; number (k / 4 * R4 + r) * 4 + k % 4
 *   NORMJIT_SCALE_LAYOUT_SWIZZLED        R128 * K4 bytes; number (r / 128 * (K4 / 4) + k / 4) * 512 +
 *                                        r % 32 * 16 + r % 128 / 32 * 4 + k % 4
 */
typedef struct normjit_tensors {
  size_t struct_size;
  normjit_input_rows x;        /* [rows, columns], input dtype */
  normjit_output_rows y;       /* [rows, columns], output dtype, in E2M1 [rows, columns / 2]; may be x */
  normjit_input_rows weight;   /* [columns], weight dtype; with affine_rows [rows, columns] */
  normjit_input_rows bias;     /* likewise */
  void* mean;                  /* [rows], f32, or f64 for f64 */
  void* rstd;                  /* [rows], as mean */
  int64_t rows;                /* 0: success, nothing is launched */
  void* workspace;             /* normjit_workspace_bytes, zeroed once, one per concurrent launch; or NULL.
                                  Only the first NORMJIT_WORKSPACE_ZEROED bytes need to be zero */
  normjit_input_rows residual; /* [rows, columns], residual type */
  normjit_output_rows sum;     /* [rows, columns], residual type; may be residual */
  const void* in_bias;         /* [columns], weight dtype */
  normjit_input_rows gate;     /* [rows, columns], modulation type */
  const void* gate_table;      /* [columns], weight dtype */
  normjit_input_rows mod_scale;
  const void* mod_scale_table;
  normjit_input_rows mod_shift;
  const void* mod_shift_table;
  int64_t plane;             /* with channels_first the positions of a sample, height * width; else 0 */
  const void* tensor_scale;  /* one f32 */
  void* row_scale;           /* [rows], f32 */
  const void* upper_bound;   /* one f32 */
  const void* global_scale;  /* one f32 */
  normjit_output_rows also;  /* [rows, columns] */
  void* block_scale;         /* as scale_format and scale_layout say */
  void* amax;                /* one f32 */
  normjit_input_rows dy;     /* [rows, columns], output dtype: the gradient of y */
  normjit_input_rows dsum;   /* [rows, columns], residual type: a gradient of the sum */
  normjit_output_rows dx;    /* [rows, columns], input dtype: the gradient of what is normalized; may be dy */
  void* dweight;             /* [columns], gradient type: over all rows */
  void* dbias;               /* likewise */
  normjit_output_rows dgate; /* [rows, columns], modulation type: the gradient of the gate; may be gate */
  normjit_output_rows dmod_scale; /* [rows, columns], modulation type; inner 0: sums over n rows each */
  normjit_output_rows dmod_shift; /* likewise */
  const void* saved_mean;         /* [rows], f32, or f64 for f64: mean, as the forward wrote it */
  const void* saved_rstd;         /* likewise */
} normjit_tensors;
#define NORMJIT_TENSORS_INIT                                                                               \
  {                                                                                                        \
    sizeof(normjit_tensors), NORMJIT_CONTIGUOUS_ROWS, NORMJIT_CONTIGUOUS_ROWS, NORMJIT_CONTIGUOUS_ROWS,    \
        NORMJIT_CONTIGUOUS_ROWS, NULL, NULL, 0, NULL, NORMJIT_CONTIGUOUS_ROWS, NORMJIT_CONTIGUOUS_ROWS,    \
        NULL, NORMJIT_CONTIGUOUS_ROWS, NULL, NORMJIT_CONTIGUOUS_ROWS, NULL, NORMJIT_CONTIGUOUS_ROWS, NULL, \
        0, NULL, NULL, NULL, NULL, NORMJIT_CONTIGUOUS_ROWS, NULL, NULL, NORMJIT_CONTIGUOUS_ROWS,           \
        NORMJIT_CONTIGUOUS_ROWS, NORMJIT_CONTIGUOUS_ROWS, NULL, NULL, NORMJIT_CONTIGUOUS_ROWS,             \
        NORMJIT_CONTIGUOUS_ROWS, NORMJIT_CONTIGUOUS_ROWS, NULL, NULL                                       \
  }

/* How to launch (normjit::LaunchOptions). A NULL argument means all 0. */
typedef struct normjit_launch_options {
  size_t struct_size;
  int32_t overlap_previous; /* 1: programmatic dependent launch */
  int32_t miss_in_capture;  /* 1: make the kernel ready even in a stream that is being captured */
  int32_t* driver_result;   /* NULL, or where normjit_kernel_launch stores the CUresult of a launch that the
                               driver refused; normjit_norm names it in its error */
} normjit_launch_options;
#define NORMJIT_LAUNCH_OPTIONS_INIT \
  { sizeof(normjit_launch_options), 0, 0, NULL }

/* Operands (normjit::Operand). */
enum {
  NORMJIT_OPERAND_X = 1,
  NORMJIT_OPERAND_IN_BIAS = 2,
  NORMJIT_OPERAND_GATE = 3,
  NORMJIT_OPERAND_GATE_TABLE = 4,
  NORMJIT_OPERAND_RESIDUAL = 5,
  NORMJIT_OPERAND_WEIGHT = 6,
  NORMJIT_OPERAND_BIAS = 7,
  NORMJIT_OPERAND_MOD_SCALE = 8,
  NORMJIT_OPERAND_MOD_SCALE_TABLE = 9,
  NORMJIT_OPERAND_MOD_SHIFT = 10,
  NORMJIT_OPERAND_MOD_SHIFT_TABLE = 11,
  NORMJIT_OPERAND_TENSOR_SCALE = 12,
  NORMJIT_OPERAND_UPPER_BOUND = 13,
  NORMJIT_OPERAND_GLOBAL_SCALE = 14,
  NORMJIT_OPERAND_Y = 15,
  NORMJIT_OPERAND_SUM = 16,
  NORMJIT_OPERAND_MEAN = 17,
  NORMJIT_OPERAND_RSTD = 18,
  NORMJIT_OPERAND_ALSO = 19,
  NORMJIT_OPERAND_ROW_SCALE = 20,
  NORMJIT_OPERAND_BLOCK_SCALE = 21,
  NORMJIT_OPERAND_AMAX = 22,
  NORMJIT_OPERAND_DY = 23,
  NORMJIT_OPERAND_DSUM = 24,
  NORMJIT_OPERAND_DX = 25,
  NORMJIT_OPERAND_DWEIGHT = 26,
  NORMJIT_OPERAND_DBIAS = 27,
  NORMJIT_OPERAND_DGATE = 28,
  NORMJIT_OPERAND_DMOD_SCALE = 29,
  NORMJIT_OPERAND_DMOD_SHIFT = 30,
  NORMJIT_OPERAND_SAVED_MEAN = 31,
  NORMJIT_OPERAND_SAVED_RSTD = 32,
  NORMJIT_OPERAND_WORKSPACE = 256
};

/* How many elements an operand has. */
enum {
  NORMJIT_EXTENT_MATRIX = 1, /* `columns` for each row; of y in E2M1 half as many, of two results each */
  NORMJIT_EXTENT_SHARED = 2, /* likewise, but neighbouring rows mostly have the same */
  NORMJIT_EXTENT_COLUMNS = 3,
  NORMJIT_EXTENT_ROWS = 4, /* one for each row */
  NORMJIT_EXTENT_ONE = 5,
  NORMJIT_EXTENT_BLOCKS = 6 /* normjit_block_scale_shape */
};
/* An operand that a spec has. */
typedef struct normjit_operand {
  size_t struct_size;
  const char* name; /* of its member of normjit_tensors; a static text */
  size_t offset;    /* of that member: rows with NORMJIT_EXTENT_MATRIX and SHARED, and of weight and bias,
                       else a pointer */
  int32_t operand;  /* NORMJIT_OPERAND_X, ... */
  int32_t output;   /* 1: the kernel writes it */
  int32_t extent;   /* NORMJIT_EXTENT_MATRIX, ... */
  int32_t dtype;    /* of its elements; with NORMJIT_SCALE_LAYOUT_PACKED_COLUMNS a byte of a word of four */
  int32_t in_place; /* the input whose memory it may have, an operand; 0: none */
  int32_t reserved;
} normjit_operand;
#define NORMJIT_OPERAND_INIT \
  { sizeof(normjit_operand), NULL, 0, 0, 0, 0, 0, 0, 0 }
/* Stores the operands of a spec in the order of their numbers, without the workspace, and how many these are.
 * *count is the room in `operands`, whose elements have the struct_size of the first. With less room than
 * that only *count is written, and so it is where `operands` is NULL. Needs no service, and no GPU. */
NORMJIT_C_EXPORT normjit_status normjit_operands(const normjit_spec* spec, normjit_operand* operands,
                                                 size_t* count, char** error);

/* Finds or makes the kernel for these tensors on the current context's device, and launches it. */
NORMJIT_C_EXPORT normjit_status normjit_norm(normjit_service* service, const normjit_spec* spec,
                                             const normjit_tensors* tensors, void* stream,
                                             const normjit_launch_options* options, char** error);
/* normjit_norm under its older name. */
NORMJIT_C_EXPORT normjit_status normjit_layer_norm(normjit_service* service, const normjit_spec* spec,
                                                   const normjit_tensors* tensors, void* stream,
                                                   const normjit_launch_options* options, char** error);
/* A workspace begins with the counters and places through which blocks meet. They must be zero before its
 * first launch, and each launch leaves them ready for the next. What is behind them may hold anything. */
#define NORMJIT_WORKSPACE_ZEROED ((size_t)225 << 10)
/* Bytes of workspace that suffice for every launch of this spec by normjit_norm on the current context's
 * device; mostly 0. */
NORMJIT_C_EXPORT normjit_status normjit_workspace_bytes(normjit_service* service, const normjit_spec* spec,
                                                        size_t* bytes, char** error);

/* The launches to prepare a kernel for (normjit::PrepareOptions). */
typedef struct normjit_prepare_options {
  size_t struct_size;
  int32_t device;            /* CUDA ordinal; -1: the current context's */
  int32_t pointer_alignment; /* bytes; 0: 16 */
  int64_t rows_hint;         /* about how many rows; 0: many */
  int64_t x_row_stride;      /* elements; -1: columns */
  int64_t y_row_stride;      /* elements; -1: columns */
  const char* plan; /* exactly this plan, as normjit_kernel_describe and the tool's `show` write it; NULL: the
                       best one */
  int32_t grouped_rows;    /* 1: an operand's rows have n > 1 */
  int32_t batch_invariant; /* 1: one plan for any number of rows */
  int64_t plane;           /* normjit_tensors.plane; 0: with channels_first a multiple of 8 */
} normjit_prepare_options;
#define NORMJIT_PREPARE_OPTIONS_INIT \
  { sizeof(normjit_prepare_options), -1, 0, 0, -1, -1, NULL, 0, 0, 0 }

/* options NULL: as the _INIT macro. */
NORMJIT_C_EXPORT normjit_status normjit_prepare(normjit_service* service, const normjit_spec* spec,
                                                const normjit_prepare_options* options,
                                                normjit_kernel** kernel, char** error);
/* Allocates nothing, takes no lock, never synchronises; one kernel node in a graph. normjit_status_message
 * returns what the status means. */
NORMJIT_C_EXPORT normjit_status normjit_kernel_launch(const normjit_kernel* kernel,
                                                      const normjit_tensors* tensors, void* stream,
                                                      const normjit_launch_options* options);
/* Checks the tensors of a launch; also asks the driver about each pointer. */
NORMJIT_C_EXPORT normjit_status normjit_kernel_check(const normjit_kernel* kernel,
                                                     const normjit_tensors* tensors, char** error);
NORMJIT_C_EXPORT size_t normjit_kernel_workspace_bytes(const normjit_kernel* kernel);
/* The byte offset of an operand's pointer in the block that kernelParams[0] of a captured launch's kernel
 * node points to; the pointer may be replaced there (normjit::Kernel::node_offset). */
NORMJIT_C_EXPORT normjit_status normjit_node_offset(const normjit_kernel* kernel, int32_t operand,
                                                    size_t* offset, char** error);
/* {"spec": ..., "plan": ..., "device": 0, "arch": "sm_90", "origin": ..., "fallback": false,
 *  "workspace_bytes": 0} */
NORMJIT_C_EXPORT normjit_status normjit_kernel_describe(const normjit_kernel* kernel, char** json,
                                                        char** error);
/* Launches in flight are not affected. NULL is allowed. */
NORMJIT_C_EXPORT void normjit_kernel_release(normjit_kernel* kernel);

/* ---- Operation ---- */

/* NORMJIT_FROZEN_ERROR: from now on a kernel that no cache has is the error NORMJIT_NOT_CACHED. */
NORMJIT_C_EXPORT normjit_status normjit_freeze(normjit_service* service, int32_t when_missing, char** error);
NORMJIT_C_EXPORT void normjit_wait_for_compiles(normjit_service* service);
/* normjit::Counters as JSON. */
NORMJIT_C_EXPORT normjit_status normjit_counters(normjit_service* service, char** json, char** error);
/* The counters as a page for Prometheus (normjit::to_prometheus), with these labels on each series; `labels`
 * may be NULL where there are none. */
typedef struct normjit_label {
  const char* name;
  const char* value;
} normjit_label;
NORMJIT_C_EXPORT normjit_status normjit_prometheus(normjit_service* service, const normjit_label* labels,
                                                   size_t label_count, char** text, char** error);
/* What normjit finds on this machine: the report of `normjit doctor --json` without prebuild, serve,
 * templates and host_compiler. Opens libnvrtc and initialises the driver. */
NORMJIT_C_EXPORT normjit_status normjit_environment(normjit_service* service, char** json, char** error);

/* Texts: `specs` are spec texts, `archs` names such as "sm_90". */
typedef struct normjit_kernel_set {
  size_t struct_size;
  const char* const* specs;
  size_t spec_count;
  const char* const* archs; /* or "native" (the GPUs here), "all-major", "all" */
  size_t arch_count;
} normjit_kernel_set;
#define NORMJIT_KERNEL_SET_INIT \
  { sizeof(normjit_kernel_set), NULL, 0, NULL, 0 }

/* Called after each kernel, by one thread at a time, with its spec and outcome ("cached", "compiled",
 * "failed"). */
typedef void (*normjit_progress_callback)(void* user, const char* spec, const char* outcome, int32_t done,
                                          int32_t total);

/* Puts every kernel of the set into the cache. Needs no GPU. jobs: how many kernels are compiled at once, 0
 * for one per core; from the third on in child processes, which end before the call returns, if the program
 * normjit-compile is installed. dry_run 1: compiles nothing. progress may be NULL. The report is that of
 * `normjit prebuild --json`; it counts kernels that failed. */
NORMJIT_C_EXPORT normjit_status normjit_prebuild(normjit_service* service, const normjit_kernel_set* set,
                                                 int32_t jobs, int32_t dry_run,
                                                 normjit_progress_callback progress, void* user, char** json,
                                                 char** error);
/* Writes the set's kernels (NULL: all) from cache directory and layers into one file (*.njp). */
NORMJIT_C_EXPORT normjit_status normjit_export_pack(normjit_service* service, const char* path,
                                                    const normjit_kernel_set* set, char** json, char** error);
/* Copies the sound entries of directories and packs, separated by colons, into the cache directory. Of a
 * service with `trust` a pack without a right signature is NORMJIT_UNTRUSTED, and nothing is copied. */
NORMJIT_C_EXPORT normjit_status normjit_import(normjit_service* service, const char* sources, char** json,
                                               char** error);
/* Adds the `size` bytes of a pack, which are copied, as a layer behind the others (Service::add_layer).
 * signature: the text of the pack's .minisig file, which a service with `trust` needs; else NULL. */
NORMJIT_C_EXPORT normjit_status normjit_add_layer(normjit_service* service, const void* pack, size_t size,
                                                  const char* signature, char** error);
/* Lists every entry of cache directory and layers. */
NORMJIT_C_EXPORT normjit_status normjit_entries(normjit_service* service, char** json, char** error);
/* Checks every entry; quarantine 1: renames damaged ones to *.damaged. */
NORMJIT_C_EXPORT normjit_status normjit_verify(normjit_service* service, int32_t quarantine, char** json,
                                               char** error);
/* Trims the cache directory to max_bytes (0 removes all; -1: the service's own bound). */
NORMJIT_C_EXPORT normjit_status normjit_prune(normjit_service* service, int64_t max_bytes, int32_t dry_run,
                                              char** json, char** error);
/* Where the kernels of a spec on an architecture are stored, or why they would be compiled. */
NORMJIT_C_EXPORT normjit_status normjit_why(normjit_service* service, const normjit_spec* spec,
                                            const char* arch, char** json, char** error);
/* The CUDA C++ of the kernel for about rows_hint rows (0: many) on an architecture; plan as in
 * normjit_prepare_options. */
NORMJIT_C_EXPORT normjit_status normjit_render(normjit_service* service, const normjit_spec* spec,
                                               const char* arch, int64_t rows_hint, const char* plan,
                                               char** source, char** error);
/* Stores a plan that was measured to be the fastest for about `rows` rows on the current context's device and
 * 16-byte aligned tensors (normjit::Service::remember). */
NORMJIT_C_EXPORT normjit_status normjit_remember(normjit_service* service, const normjit_spec* spec,
                                                 int64_t rows, const char* plan, char** error);

#ifdef __cplusplus
}
#endif

#endif /* NORMJIT_C_API_H_ */
