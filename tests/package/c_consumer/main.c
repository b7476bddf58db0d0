// SPDX-License-Identifier: Apache-2.0
/* The C interface as an installed package has it: renders a kernel, for which neither GPU nor compiler is needed. */
#include <normjit/c_api.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  normjit_options options = NORMJIT_OPTIONS_INIT;
  normjit_spec spec = NORMJIT_SPEC_INIT;
  normjit_service *service = NULL;
  char *source = NULL, *error = NULL;
  int right = 0;
  options.ignore_environment = NORMJIT_YES;
  spec.columns = 64;
  if (normjit_service_create(&options, &service, &error) ||
      normjit_render(service, &spec, "sm_90", 0, NULL, &source, &error)) {
    fprintf(stderr, "%s\n", error);
  } else {
    printf("%lu bytes of CUDA\n", (unsigned long)strlen(source));
    right = strstr(source, "__global__") != NULL && normjit_abi_version() == NORMJIT_ABI_VERSION;
  }
  normjit_free(source);
  normjit_free(error);
  normjit_service_destroy(service);
  return !right;
}
