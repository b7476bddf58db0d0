// What the kernel cache holds, and how to look after it: the reports and options of the calls of a Service
// that are about its cache. cache/README.md documents files, key and rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/device.h"
#include "normjit/plan.h"
#include "normjit/spec.h"

namespace normjit {

// An entry as list shows it: a kernel or a tuned plan.
struct EntryReport {
  std::string id;    // file name without its extension
  std::string tier;  // the directory or pack that holds it
  bool damaged =
      false;  // it is never used, and error says why; of the rest only bytes and modified are known
  std::string error;
  std::string spec, plan, arch, code;     // code: "cubin" or "ptx", and "plan" of a tuned plan
  std::string kernel, toolchain;          // empty of a tuned plan
  std::string device, regime, alignment;  // what a tuned plan is for; empty of a kernel
  int registers = -1, spill_bytes = -1, shared_bytes = -1;  // as ptxas reported them; -1 unknown
  std::int64_t bytes = 0;                                   // of the file, or of its part of the pack
  std::int64_t modified = 0;  // of the file, in seconds since 1970; of an entry in a pack that of the pack
};

// Service::verify.
struct VerifyReport {
  int entries = 0;         // sound ones
  std::int64_t bytes = 0;  // of those
  struct Flaw {
    std::string path;    // of the file; an entry in a pack: the pack's
    std::string reason;  // a sentence
    bool quarantined = false;
  };
  std::vector<Flaw> flaws;
};

struct PruneOptions {
  // Entries are removed, the oldest first, once they take more than this, until they take 90 % of it. 0
  // removes them all; -1 is Options::max_cache_bytes.
  std::int64_t max_bytes = -1;
  // Temporaries at least so old belong to publishers that were killed.
  std::int64_t stale_seconds = 600;
  bool dry_run = false;  // only look
};

// Service::prune.
struct PruneReport {
  int entries = 0, damaged = 0, temporaries = 0;  // removed, or in a dry run to be removed
  std::int64_t bytes = 0;                         // of all these
  int kept = 0;                                   // entries that stay, and their
  std::int64_t kept_bytes = 0;                    // bytes
  int refused = 0;                                // files that could not be removed
  bool busy = false;  // another process was trimming the directory just then: nothing was done
};

struct ExportOptions {
  // What to take entries from, directories or packs; an earlier one goes before a later one. Empty: the cache
  // directory and the layers.
  std::vector<std::string> from;
  // Only the kernels that these specs can ask for on these devices, and the plans tuned for them; both empty:
  // all that is sound.
  std::vector<NormSpec> specs;
  std::vector<DeviceProfile> devices;
};

// Service::export_pack.
struct ExportReport {
  int entries = 0;         // in the pack
  std::int64_t bytes = 0;  // of the pack
  std::string digest;      // XXH3 of the pack, 128 bits, as xxh128sum prints it; empty where none is written
  int damaged = 0;         // entries left out because they are unsound
  // The kernels asked for that are nowhere: "layernorm/... on sm_90 with plan ...".
  std::vector<std::string> missing;
};

// Service::import_from.
struct ImportReport {
  int imported = 0;                 // entries that the cache directory now has in addition
  int present = 0;                  // entries that it had
  int refused = 0;                  // unsound ones
  int unstored = 0;                 // sound ones that the directory did not take
  std::vector<std::string> errors;  // why, of both
};

// Service::why: one kernel that a spec can ask for, and where it is or why it is nowhere.
struct WhyReport {
  NormSpec spec;
  Arch arch;
  Plan plan;
  std::string uses;      // what asks for it: "few rows, alignment 8; many rows, alignment 4 or 8"; or empty
  std::string id;        // of its entry
  std::string identity;  // its key, whole
  // What holds it: "memory", "embedded", or the path of a directory or pack; empty: nothing.
  std::string tier;
  // One sentence: which tier holds it; or what stands at its place and cannot be used; or how it differs from
  // the nearest entry; or that there is nothing like it.
  std::string reason;
  // Against the nearest entry, if there is one and the kernel is nowhere.
  struct Difference {
    std::string field;  // "columns", "epsilon", "plan", "arch", "options", "source"...
    std::string asked, stored;
  };
  std::string nearest;  // the id of that entry
  std::vector<Difference> differences;
};

}  // namespace normjit
