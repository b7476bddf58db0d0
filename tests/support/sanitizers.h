// SPDX-License-Identifier: Apache-2.0
// Which sanitizer is in this program: g++ defines macros, clang 14 has features.
#pragma once

#ifdef __has_feature
#define NORMJIT_HAS_FEATURE(feature) __has_feature(feature)
#else
#define NORMJIT_HAS_FEATURE(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || NORMJIT_HAS_FEATURE(address_sanitizer)
#define NORMJIT_ADDRESS_SANITIZER
#endif
#if defined(__SANITIZE_THREAD__) || NORMJIT_HAS_FEATURE(thread_sanitizer)
#define NORMJIT_THREAD_SANITIZER
#endif
