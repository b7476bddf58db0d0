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

int snippet_of_gradients(normjit_service* service, int64_t columns, int64_t rows, const void* sum,
                         const void* dy, const void* dsum, const void* weight, void* dx, void* dweight,
                         void* (*zeroed)(size_t), void* stream, char** error);

int snippet_of_gradients(normjit_service* service, int64_t columns, int64_t rows, const void* sum,
                         const void* dy, const void* dsum, const void* weight, void* dx, void* dweight,
                         void* (*zeroed)(size_t), void* stream, char** error) {
  /* clang-format off */
  normjit_spec backward = NORMJIT_SPEC_INIT;
  normjit_tensors gradients = NORMJIT_TENSORS_INIT;
  backward.norm = NORMJIT_RMS, backward.backward = 1, backward.dsum = 1;
  backward.columns = columns, backward.affine = NORMJIT_WEIGHT;
  size_t bytes = 0;
  if (normjit_workspace_bytes(service, &backward, &bytes, error)) return 1;
  gradients.workspace = zeroed(bytes);
  gradients.x.pointer = sum, gradients.dy.pointer = dy, gradients.dsum.pointer = dsum;
  gradients.weight.pointer = weight, gradients.rows = rows;
  gradients.dx.pointer = dx, gradients.dweight = dweight;
  return normjit_norm(service, &backward, &gradients, stream, NULL, error) != NORMJIT_OK;
  /* clang-format on */
}

int snippet_of_a_layer(normjit_service* service, const void* pack, size_t size, char** error);

int snippet_of_a_layer(normjit_service* service, const void* pack, size_t size, char** error) {
  /* clang-format off */
  if (normjit_add_layer(service, pack, size, NULL, error)) return 1;
  /* clang-format on */
  return 0;
}
