// SPDX-License-Identifier: Apache-2.0
// The kernel cache: reports and options of the calls with which a Service lists, checks and maintains it.
// cache/README.md documents files, key and rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/device.h"
#include "normjit/export.h"
#include "normjit/plan.h"
#include "normjit/spec.h"

namespace normjit {

// Service::entries: a kernel or a tuned plan.
struct EntryReport {
  std::string id;    // file name without its extension
  std::string tier;  // the directory or pack that holds it, or "memory layer 1" and the like
  // A damaged entry is never used, and error says why. Besides id and tier only bytes and modified are known.
  bool damaged = false;
  std::string error;
  std::string spec, plan, arch, code;                       // code: "cubin" or "ptx"; "plan" for a tuned plan
  std::string kernel, toolchain;                            // empty for a tuned plan
  std::string device, regime, alignment;                    // the use of a tuned plan; empty for a kernel
  int registers = -1, spill_bytes = -1, shared_bytes = -1;  // as ptxas reported them; -1: unknown
  std::int64_t bytes = 0;                                   // of the file, or of its part of the pack
  // Of the file or pack, in seconds since 1970; 0 for a layer in memory.
  std::int64_t modified = 0;
};

// Service::verify.
struct VerifyReport {
  int entries = 0;         // sound entries
  std::int64_t bytes = 0;  // of the sound entries
  struct Flaw {
    std::string path;    // of the file; for an entry in a pack, of the pack
    std::string reason;  // a sentence
    bool quarantined = false;
  };
  std::vector<Flaw> flaws;
};

struct PruneOptions {
  // If the entries exceed this size, the oldest are removed until 90 % of it are left. 0: all are removed;
  // -1: Options::max_cache_bytes.
  std::int64_t max_bytes = -1;
  // Temporaries of at least this age are removed: their publishers were killed.
  std::int64_t stale_seconds = 600;
  bool dry_run = false;  // only count
};

// Service::prune.
struct PruneReport {
  int entries = 0, damaged = 0, temporaries = 0;  // removed; in a dry run, would be removed
  std::int64_t bytes = 0;                         // of all these
  int kept = 0;                                   // entries left
  std::int64_t kept_bytes = 0;                    // of the entries left
  int refused = 0;                                // files that could not be removed
  bool busy = false;  // another process was trimming the directory: nothing was done
};

struct ExportOptions {
  // The directories or packs to take entries from; an earlier one has precedence. Empty: the cache directory
  // and the layers.
  std::vector<std::string> from;
  // Only the kernels that these specs can use on these devices, and the plans tuned for them. Both empty: all
  // sound entries.
  std::vector<NormSpec> specs;
  std::vector<DeviceProfile> devices;
  // The uses of these specs, as of a prebuild.
  Uses uses = {};
  // Only tuned plans, without their kernels: a few hundred bytes each, for a cache whose service compiles.
  bool only_tuned = false;
  // The file of a secret key (Options::sign_key), with which the pack is signed: PACK.minisig is written
  // beside it. Empty: the pack is not signed.
  std::string sign_key = {};
};

// Service::export_pack.
struct ExportReport {
  int entries = 0;         // in the pack
  std::int64_t bytes = 0;  // of the pack
  std::string digest;      // XXH3 of the pack, 128 bits, as xxh128sum prints it; empty if none was written
  int damaged = 0;         // damaged entries, which are left out
  // The wanted kernels that no source has: "layernorm/... on sm_90 with plan ...".
  std::vector<std::string> missing;
};

// Service::import_from.
struct ImportReport {
  int imported = 0;                 // entries added to the cache directory
  int present = 0;                  // entries that it already had
  int refused = 0;                  // damaged entries
  int unstored = 0;                 // sound entries that the directory could not store
  std::vector<std::string> errors;  // the reason for each refused or unstored entry
};

// Service::remote: what to do with the kernels.
enum class RemoteTask : std::uint8_t {
  get,     // copy what the cache lacks from the store
  put,     // copy what the store lacks to it
  verify,  // look at what the store has
};
// What came of it.
struct RemoteReport {
  enum class Outcome : std::uint8_t {
    present,    // it was there already; verify: it is sound
    copied,     // to the cache, or to the store
    absent,     // there is nothing to copy; verify: the store does not have it
    untrusted,  // the store has a value that is not believed
    failed,     // the store did not answer, or the cache could not keep it
  };
  struct Kernel {
    std::string id, spec, plan, arch;
    Outcome outcome = Outcome::failed;
    std::string why;  // a sentence, of untrusted and failed
  };
  std::vector<Kernel> kernels;
};

NORMJIT_API std::string_view name(RemoteReport::Outcome) noexcept;

// Service::why: one kernel that a spec can use, and where it is stored or why it is not.
struct WhyReport {
  NormSpec spec;
  Arch arch;
  Plan plan;
  std::string uses;  // which launches use it: "1 to 66 rows, alignment 4 or 8; 67 and more rows, alignment 8"
  std::string id;    // of its entry
  std::string identity;  // its whole key
  // Where it is stored: "memory", "embedded", or the path of a directory or pack; empty: nowhere.
  std::string tier;
  // One sentence: which tier has it; or why the entry of its name cannot be used; or how the nearest entry
  // differs; or that no kernel is stored.
  std::string reason;
  // How it differs from the nearest entry, if there is one and the kernel is not stored.
  struct Difference {
    std::string field;  // "columns", "epsilon", "plan", "arch", "options", "source"...
    std::string asked, stored;
  };
  std::string nearest;  // the id of that entry
  std::vector<Difference> differences;
};

}  // namespace normjit
