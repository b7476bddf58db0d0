// SPDX-License-Identifier: Apache-2.0
/* The lines of docs/c_api.md, as a compiler takes them. */
#include <normjit/c_api.h>
#include <stdio.h>

void snippet(int64_t columns, int64_t rows, const void* x, void* y, const void* weight, const void* bias,
             void* stream);

void snippet(int64_t columns, int64_t rows, const void* x, void* y, const void* weight, const void* bias,
             void* stream) {
  /* clang-format off */
  normjit_service *service = NULL;
  char *error = NULL;
  normjit_spec spec = NORMJIT_SPEC_INIT;
  normjit_tensors tensors = NORMJIT_TENSORS_INIT;
  spec.columns = columns, spec.affine = NORMJIT_WEIGHT_BIAS;
  tensors.x.pointer = x, tensors.weight.pointer = weight, tensors.bias.pointer = bias;
  tensors.y.pointer = y, tensors.rows = rows;
  if (normjit_service_create(NULL, &service, &error) ||
      normjit_norm(service, &spec, &tensors, stream, NULL, &error)) {
    fprintf(stderr, "%s\n", error);
    normjit_free(error);
  }
  normjit_service_destroy(service);
  /* clang-format on */
}
