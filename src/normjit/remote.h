// SPDX-License-Identifier: Apache-2.0
/* A store of kernels that machines share, as functions: what a plug-in or a host gives to normjit. C11 and
 * C++.
 *
 * normjit looks there on the way to a compile and nowhere else, and offers there what it has compiled. The
 * store keeps values by key and need not be trusted: values are signed (docs/fleets.md). It may lose any
 * value at any time.
 *
 * A function returns within timeout_ms, counted in milliseconds from the call; what takes longer has failed.
 * `why` is room for why_size bytes, at least 200: a function that fails or refuses writes a sentence there,
 * which ends with a 0 byte and names no user, password or key; after any other outcome it means nothing.
 * Functions print nothing, throw nothing and do not call normjit. */
#ifndef NORMJIT_REMOTE_H_
#define NORMJIT_REMOTE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t normjit_remote_outcome;
enum {
  NORMJIT_REMOTE_DONE = 1,
  NORMJIT_REMOTE_ABSENT = 2,
  NORMJIT_REMOTE_FAILED =
      3, /* not reached, no answer in time, or an answer that is none: the store is down */
  NORMJIT_REMOTE_REFUSED =
      4, /* an answer that this call or key cannot be served: rights, room, a value too large */
  NORMJIT_REMOTE_UNCHANGED = 5 /* of a fetch alone: the file is still of the version that the caller has */
};

/* Takes a value. The bytes are valid during the call. */
typedef void (*normjit_remote_sink)(void* to, const void* bytes, size_t size);

/* The functions of a store. One that is NULL cannot be asked for; get is always there.
 *
 * Keys have at most 100 bytes out of a-z, 0-9 and ':'; no key has both a value and a lease. A value has 1
 * byte to 64 MiB, most have 20 to 100 KB.
 *
 * A host's structure (normjit_options.remote_store) is called by several threads at once, also after a fork
 * if the host forks. A structure that normjit_remote_open made is a session: it serves one call at a time,
 * and a forked child opens sessions of its own and leaves those of its parent alone. */
typedef struct normjit_remote {
  size_t struct_size;
  void* user; /* the first argument of each function */

  /* Calls sink(to, ...) once with the value of the key, and is DONE. ABSENT: it has none. A value of more
   * than max_bytes is REFUSED. */
  normjit_remote_outcome (*get)(void* user, const char* key, size_t max_bytes, normjit_remote_sink sink,
                                void* to, int32_t timeout_ms, char* why, size_t why_size);
  /* Gives the key this value if it has none. DONE: it has one now, this or an older one. All values of a key
   * are interchangeable, so a store that can only replace may replace. */
  normjit_remote_outcome (*put)(void* user, const char* key, const void* bytes, size_t size,
                                int32_t timeout_ms, char* why, size_t why_size);
  /* Gives the key, that of a value with ":lease" behind, to this owner, a text like a key, for lifetime_ms
   * from now on: DONE, also if it had it. ABSENT: another owner has it, or the value is there. It ends by
   * itself. A store that cannot look for the value at once costs a compile now and then. */
  normjit_remote_outcome (*lease)(void* user, const char* key, const char* owner, int32_t lifetime_ms,
                                  int32_t timeout_ms, char* why, size_t why_size);
  /* Ends a lease, if this owner has it. DONE in either case. */
  normjit_remote_outcome (*release)(void* user, const char* key, const char* owner, int32_t timeout_ms,
                                    char* why, size_t why_size);
  /* The last call. Waits for nothing. */
  void (*close)(void* user);
} normjit_remote;
#define NORMJIT_REMOTE_INIT \
  { sizeof(normjit_remote), NULL, NULL, NULL, NULL, NULL, NULL }

/* What a plug-in exports as "normjit_remote_open": fills `remote`, whose struct_size the caller has set, for
 * this URL, for example "redis://host:6379/0". DONE or FAILED; fails for a URL that it does not understand.
 * Connects to nothing: the first call of a function does. */
typedef normjit_remote_outcome (*normjit_remote_open_function)(const char* url, normjit_remote* remote,
                                                               char* why, size_t why_size);

/* What a plug-in that can take single files exports as "normjit_remote_fetch": takes the file at this URL,
 * unless it is still of this version, a text that an earlier fetch has given ("" : none; an ETag). DONE:
 * calls sink once, and writes the file's version to new_version, room for version_size bytes, at least 200:
 * "" if it has none, or a longer one. UNCHANGED, ABSENT; REFUSED: also a file of more than max_bytes; FAILED.
 */
typedef normjit_remote_outcome (*normjit_remote_fetch_function)(const char* url, const char* version,
                                                                size_t max_bytes, normjit_remote_sink sink,
                                                                void* to, char* new_version,
                                                                size_t version_size, int32_t timeout_ms,
                                                                char* why, size_t why_size);

#ifdef __cplusplus
}
#endif
#endif
