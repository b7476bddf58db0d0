// SPDX-License-Identifier: Apache-2.0
// Marks what the shared library exports; everything else is compiled with hidden visibility.
#pragma once

#define NORMJIT_API __attribute__((visibility("default")))
