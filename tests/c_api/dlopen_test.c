// SPDX-License-Identifier: Apache-2.0
/* dlopen_test LIBRARY FOLDER: a C11 program that opens the shared library and calls every function of it,
 * with a libcuda that only counts (stand_in_cuda.cc) and the compiler of this machine. It counts what is
 * allocated, too: a launch allocates nothing, and 100,000 calls leave nothing behind. FOLDER is empty. */
#include <dlfcn.h>
#include <errno.h>
#include <normjit/c_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_FUNCTION(F)           \
  F(normjit_abi_version)            \
  F(normjit_version)                \
  F(normjit_status_name)            \
  F(normjit_status_message)         \
  F(normjit_free)                   \
  F(normjit_columns_of)             \
  F(normjit_spec_parse)             \
  F(normjit_spec_text)              \
  F(normjit_block_scale_shape)      \
  F(normjit_operands)               \
  F(normjit_service_create)         \
  F(normjit_service_destroy)        \
  F(normjit_layer_norm)             \
  F(normjit_workspace_bytes)        \
  F(normjit_prepare)                \
  F(normjit_kernel_launch)          \
  F(normjit_kernel_check)           \
  F(normjit_kernel_workspace_bytes) \
  F(normjit_kernel_describe)        \
  F(normjit_kernel_release)         \
  F(normjit_freeze)                 \
  F(normjit_wait_for_compiles)      \
  F(normjit_counters)               \
  F(normjit_prometheus)             \
  F(normjit_environment)            \
  F(normjit_prebuild)               \
  F(normjit_export_pack)            \
  F(normjit_import)                 \
  F(normjit_add_layer)              \
  F(normjit_entries)                \
  F(normjit_verify)                 \
  F(normjit_prune)                  \
  F(normjit_why)                    \
  F(normjit_render)                 \
  F(normjit_remember)

/* The functions as members of one structure: call.normjit_version(). */
#define DECLARE(name) __typeof__(name)* name;
static struct { EVERY_FUNCTION(DECLARE) } call;

/* ---- What is allocated: malloc and its kin, as the whole process finds them ---- */

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static atomic_long allocations, live;

static void* counted(void* block) {
  if (block == NULL) return NULL;
  ++allocations;
  ++live;
  return block;
}

void* malloc(size_t size) { return counted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }
void* memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }
void* aligned_alloc(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }
int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = counted(__libc_memalign(alignment, size));
  return *block == NULL ? ENOMEM : 0;
}
void* realloc(void* block, size_t size) {
  if (block == NULL) return malloc(size);
  ++allocations;
  return __libc_realloc(block, size);
}
void free(void* block) {
  if (block != NULL) --live;
  __libc_free(block);
}

/* ---- Checks ---- */

static char* g_error; /* of the last call that failed */

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, g_error ? g_error : ""); \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)
#define IS_OK(status) CHECK((status) == NORMJIT_OK)
/* A status other than Ok, and a sentence that has these words. */
#define FAILS(wanted, words, status)                          \
  do {                                                        \
    CHECK((status) == (wanted));                              \
    CHECK(g_error != NULL && strstr(g_error, words) != NULL); \
    call.normjit_free(g_error);                               \
    g_error = NULL;                                           \
  } while (0)
/* A report that has these words. */
#define REPORTS(words, status)                          \
  do {                                                  \
    char* json = NULL;                                  \
    IS_OK(status);                                      \
    CHECK(json != NULL && strstr(json, words) != NULL); \
    call.normjit_free(json);                            \
  } while (0)

static void* function(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

static void open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
#define LOAD(name)                                \
  {                                               \
    void* const found = function(library, #name); \
    memcpy(&call.name, &found, sizeof found);     \
  }
  EVERY_FUNCTION(LOAD)
}

/* ---- What is called ---- */

static normjit_spec spec_of(int64_t columns) {
  normjit_spec spec = NORMJIT_SPEC_INIT;
  spec.columns = columns;
  spec.affine = NORMJIT_WEIGHT_BIAS;
  return spec;
}

static void* address(size_t number) { return (void*)(uintptr_t)(number << 20); }

static normjit_tensors tensors_of(int64_t rows) {
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  tensors.x.pointer = address(1);
  tensors.y.pointer = address(2);
  tensors.weight.pointer = address(3);
  tensors.bias.pointer = address(4);
  tensors.rows = rows;
  return tensors;
}

static int events;
static void on_event(void* user, const normjit_event* event) {
  CHECK(user == &events && event->struct_size == sizeof *event && event->spec[0] != '\0');
  ++events;
}
static void on_log(void* user, int32_t level, const char* message) {
  CHECK(user == &events && level >= NORMJIT_LOG_DEBUG && level <= NORMJIT_LOG_ERROR && message[0] != '\0');
}

static normjit_service* service_in(const char* folder) {
  normjit_options options = NORMJIT_OPTIONS_INIT;
  normjit_service* service = NULL;
  options.cache_directory = folder;
  options.layers = "";
  options.miss_log = "";
  options.mode = NORMJIT_EAGER;
  options.log = on_log;
  options.on_event = on_event;
  options.log_user = options.event_user = &events;
  IS_OK(call.normjit_service_create(&options, &service, &g_error));
  return service;
}

static void specs(void) {
  const int64_t shape[] = {64, 256, 256};
  int64_t columns = 0;
  normjit_spec spec = NORMJIT_SPEC_INIT;
  char* text = NULL;
  CHECK(call.normjit_abi_version() == NORMJIT_ABI_VERSION);
  CHECK(call.normjit_version()[0] == '0');
  CHECK(strcmp(call.normjit_status_name(NORMJIT_NOT_READY), "NotReady") == 0);
  CHECK(strlen(call.normjit_status_message(NORMJIT_MISALIGNED)) > 20);
  IS_OK(call.normjit_columns_of(shape, 3, &columns, &g_error));
  CHECK(columns == 4194304);
  IS_OK(call.normjit_spec_parse("layernorm/cols=64/bf16/wb", &spec, &g_error));
  CHECK(spec.columns == 64 && spec.input == NORMJIT_BF16 && spec.affine == NORMJIT_WEIGHT_BIAS);
  IS_OK(call.normjit_spec_text(&spec, &text, &g_error));
  CHECK(strcmp(text, "layernorm/cols=64/bf16/eps=1e-05/wb") == 0);
  call.normjit_free(text);
  FAILS(NORMJIT_BAD_SPEC_TEXT, "spec", call.normjit_spec_parse("layernorm/cows=1", &spec, &g_error));
}

static void launches(normjit_service* service, uint64_t (*launched)(void)) {
  const normjit_spec spec = spec_of(64), other = spec_of(128);
  normjit_tensors tensors = tensors_of(200);
  normjit_launch_options in_capture = NORMJIT_LAUNCH_OPTIONS_INIT;
  normjit_prepare_options use = NORMJIT_PREPARE_OPTIONS_INIT;
  void* const capturing = (void*)(uintptr_t)0x40;
  normjit_kernel* kernel = NULL;
  size_t bytes = 1;
  const uint64_t before = launched();

  IS_OK(call.normjit_workspace_bytes(service, &spec, &bytes, &g_error));
  CHECK(bytes == 0);
  use.rows_hint = 200;
  IS_OK(call.normjit_prepare(service, &spec, &use, &kernel, &g_error));
  CHECK(call.normjit_kernel_workspace_bytes(kernel) == 0);
  IS_OK(call.normjit_kernel_check(kernel, &tensors, &g_error));
  IS_OK(call.normjit_kernel_launch(kernel, &tensors, NULL, NULL));
  IS_OK(call.normjit_kernel_launch(kernel, &tensors, capturing, NULL));
  IS_OK(call.normjit_layer_norm(service, &spec, &tensors, NULL, NULL, &g_error));
  CHECK(launched() - before == 3);
  CHECK(events > 0);
  {
    char* json = NULL;
    IS_OK(call.normjit_kernel_describe(kernel, &json, &g_error));
    CHECK(strstr(json, "\"origin\"") != NULL);
    call.normjit_free(json);
  }

  FAILS(NORMJIT_NOT_READY, "captured",
        call.normjit_layer_norm(service, &other, &tensors, capturing, NULL, &g_error));
  in_capture.miss_in_capture = 1;
  IS_OK(call.normjit_layer_norm(service, &other, &tensors, capturing, &in_capture, &g_error));
  IS_OK(call.normjit_layer_norm(service, &other, &tensors, capturing, NULL, &g_error));
  CHECK(launched() - before == 5);

  tensors.x.pointer = NULL;
  FAILS(NORMJIT_NULL_POINTER, "null",
        call.normjit_layer_norm(service, &spec, &tensors, NULL, NULL, &g_error));
  CHECK(call.normjit_kernel_launch(kernel, &tensors, NULL, NULL) == NORMJIT_NULL_POINTER);
  call.normjit_kernel_release(kernel);
  IS_OK(call.normjit_freeze(service, NORMJIT_FROZEN_ERROR, &g_error));
  {
    const normjit_spec third = spec_of(96);
    tensors = tensors_of(200);
    FAILS(NORMJIT_NOT_CACHED, "cols=96",
          call.normjit_layer_norm(service, &third, &tensors, NULL, NULL, &g_error));
  }
  IS_OK(call.normjit_freeze(service, NORMJIT_THAWED, &g_error));
  call.normjit_wait_for_compiles(service);
  CHECK(launched() - before == 5);
}

/* The bytes of a file; *size is their number. */
static void* contents(const char* path, size_t* size) {
  FILE* const file = fopen(path, "rb");
  char* bytes = NULL;
  CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
  *size = (size_t)ftell(file);
  rewind(file);
  CHECK((bytes = malloc(*size)) != NULL && fread(bytes, 1, *size, file) == *size);
  fclose(file);
  return bytes;
}

static int done_last;
static void on_progress(void* user, const char* spec, const char* outcome, int32_t done, int32_t total) {
  CHECK(user == &done_last && done == ++done_last && done <= total);
  CHECK(strcmp(spec, "layernorm/cols=32/f32/eps=1e-05/wb") == 0 && outcome[0] != '\0');
}

static void cache(normjit_service* service, const char* folder) {
  const char* const texts[] = {"layernorm/cols=32/f32/wb"};
  const char* const archs[] = {"sm_90"};
  const normjit_kernel_set set = {sizeof set, texts, 1, archs, 1};
  const normjit_spec spec = spec_of(32);
  char pack[1000], other_folder[1000], *source = NULL, *plan = NULL;
  normjit_service* other;
  snprintf(pack, sizeof pack, "%s/kernels.njp", folder);
  snprintf(other_folder, sizeof other_folder, "%s/other", folder);
  other = service_in(other_folder);

  REPORTS("\"failed\": 0",
          call.normjit_prebuild(service, &set, 1, 0, on_progress, &done_last, &json, &g_error));
  CHECK(done_last > 0);
  REPORTS("\"missing\": 0", call.normjit_prebuild(service, &set, 1, 1, NULL, NULL, &json, &g_error));
  REPORTS("\"written\": true", call.normjit_export_pack(service, pack, &set, &json, &g_error));
  REPORTS("\"refused\": 0", call.normjit_import(other, pack, &json, &g_error));
  REPORTS("cols=32", call.normjit_entries(other, &json, &g_error));
  REPORTS("\"flaws\": []", call.normjit_verify(other, 1, &json, &g_error));
  REPORTS("\"missing\": 0", call.normjit_why(other, &spec, "sm_90", &json, &g_error));
  REPORTS("\"compiles\": ", call.normjit_counters(service, &json, &g_error));
  REPORTS("\nnormjit_compiles_total ", call.normjit_prometheus(service, NULL, 0, &json, &g_error));
  REPORTS("stand-in", call.normjit_environment(service, &json, &g_error));
  IS_OK(call.normjit_render(service, &spec, "sm_90", 0, NULL, &source, &g_error));
  CHECK(strstr(source, "__global__") != NULL);
  call.normjit_free(source);

  { /* The plan of a kernel is kept as it is described. */
    normjit_kernel* kernel = NULL;
    char *begin, *end;
    IS_OK(call.normjit_prepare(other, &spec, NULL, &kernel, &g_error));
    IS_OK(call.normjit_kernel_describe(kernel, &plan, &g_error));
    CHECK((begin = strstr(plan, "\"plan\": \"")) != NULL);
    begin += strlen("\"plan\": \"");
    CHECK((end = strchr(begin, '"')) != NULL);
    *end = '\0';
    IS_OK(call.normjit_remember(other, &spec, 1000, begin, &g_error));
    call.normjit_free(plan);
    call.normjit_kernel_release(kernel);
  }
  REPORTS("\"dry_run\": false", call.normjit_prune(other, 0, 0, &json, &g_error));
  REPORTS("\"entries\": []", call.normjit_entries(other, &json, &g_error));

  { /* The service keeps a copy. */
    size_t size = 0;
    void* const bytes = contents(pack, &size);
    FAILS(NORMJIT_BAD_ARGUMENT, "size", call.normjit_add_layer(other, bytes, size - 1, NULL, &g_error));
    IS_OK(call.normjit_add_layer(other, bytes, size, NULL, &g_error));
    memset(bytes, 0, size);
    free(bytes);
    REPORTS("\"missing\": 0", call.normjit_why(other, &spec, "sm_90", &json, &g_error));
    REPORTS("memory layer 1", call.normjit_environment(other, &json, &g_error));
  }
  call.normjit_service_destroy(other);
}

/* So many of both forms of a launch. */
static void launch_often(normjit_service* service, const normjit_kernel* kernel, int times) {
  const normjit_spec spec = spec_of(64);
  const normjit_tensors tensors = tensors_of(200);
  int i;
  for (i = 0; i < times; ++i) {
    IS_OK(call.normjit_layer_norm(service, &spec, &tensors, NULL, NULL, &g_error));
    IS_OK(call.normjit_kernel_launch(kernel, &tensors, NULL, NULL));
  }
}

/* One call of what allocates, and of what fails. */
static void call_often(normjit_service* service, int times) {
  const normjit_spec spec = spec_of(64);
  normjit_spec wrong = spec_of(64);
  const normjit_tensors tensors = tensors_of(200);
  int i;
  wrong.activation = 99;
  for (i = 0; i < times; ++i) {
    normjit_kernel* kernel = NULL;
    char* text = NULL;
    IS_OK(call.normjit_prepare(service, &spec, NULL, &kernel, &g_error));
    IS_OK(call.normjit_kernel_describe(kernel, &text, &g_error));
    call.normjit_free(text);
    call.normjit_kernel_release(kernel);
    IS_OK(call.normjit_counters(service, &text, &g_error));
    call.normjit_free(text);
    FAILS(NORMJIT_BAD_ACTIVATION, "99",
          call.normjit_layer_norm(service, &wrong, &tensors, NULL, NULL, &g_error));
  }
}

static void memory(normjit_service* service, uint64_t (*launched)(void)) {
  const normjit_spec spec = spec_of(64);
  normjit_prepare_options use = NORMJIT_PREPARE_OPTIONS_INIT;
  normjit_kernel* kernel = NULL;
  long before;
  uint64_t launched_before;
  use.rows_hint = 200;
  IS_OK(call.normjit_prepare(service, &spec, &use, &kernel, &g_error));
  launch_often(service, kernel, 10);
  call_often(service, 10);

  before = allocations;
  launched_before = launched();
  launch_often(service, kernel, 50000);
  CHECK(allocations == before);
  CHECK(launched() - launched_before == 100000);

  before = live;
  call_often(service, 20000); /* five calls each time */
  CHECK(live == before);
  call.normjit_kernel_release(kernel);
  puts("100000 launches allocate nothing, and 100000 calls leave nothing behind");
}

int main(int argc, char** argv) {
  char folder[1000];
  uint64_t (*launched)(void);
  normjit_service* service;
  if (argc != 3) return 2;
  open_library(argv[1]);
  { /* Which the library opens, too. */
    void* const cuda = dlopen("libcuda.so.1", RTLD_NOW);
    void* const found = cuda == NULL ? NULL : dlsym(cuda, "stand_in_launches");
    CHECK(found != NULL);
    memcpy(&launched, &found, sizeof found);
  }
  specs();
  snprintf(folder, sizeof folder, "%s/cache", argv[2]);
  service = service_in(folder);
  launches(service, launched);
  cache(service, argv[2]);
  memory(service, launched);
  call.normjit_service_destroy(service);
  return 0;
}
