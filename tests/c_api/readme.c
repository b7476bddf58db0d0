/* The README's lines for C, as a compiler takes them. */
#include <normjit/c_api.h>
#include <stdio.h>

void readme(int64_t columns, int64_t rows, const void* x, void* y, const void* weight, const void* bias,
            void* stream);

void readme(int64_t columns, int64_t rows, const void* x, void* y, const void* weight, const void* bias,
            void* stream) {
  char* error = NULL;
  /* clang-format off */
  normjit_service *service;
  normjit_spec spec = NORMJIT_SPEC_INIT;
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  spec.columns = columns, spec.affine = NORMJIT_WEIGHT_BIAS;
  tensors.x.pointer = x, tensors.y.pointer = y, tensors.weight = weight, tensors.bias = bias, tensors.rows = rows;
  if (normjit_service_create(NULL, &service, &error) ||
      normjit_norm(service, &spec, &tensors, stream, NULL, &error))
    fprintf(stderr, "%s\n", error);
  /* clang-format on */
  normjit_free(error);
}
