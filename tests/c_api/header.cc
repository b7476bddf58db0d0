// SPDX-License-Identifier: Apache-2.0
// Nothing but the C interface's header: it needs no other.
#include <normjit/c_api.h>

static_assert(sizeof(normjit_spec) == offsetof(normjit_spec, reserved) + sizeof(normjit_spec::reserved),
              "no padding behind the last member that a later one could fill");
