// SPDX-License-Identifier: Apache-2.0
// The front door: from a NormSpec to a launched kernel.
//
//   normjit::Service service;
//   auto status = service.norm({.columns = 4096, .affine = normjit::Affine::weight_bias},
//                                    {.x = x, .y = y, .weight = w, .bias = b, .rows = n}, stream);
//
// No CUDA, spdlog or fmt header is included here, so a host needs none of them to compile against normjit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "normjit/cache.h"
#include "normjit/device.h"
#include "normjit/plan.h"
#include "normjit/remote.h"
#include "normjit/result.h"
#include "normjit/spec.h"
#include "normjit/stream.h"
#include "normjit/telemetry.h"
#include "normjit/tensors.h"

namespace normjit {

enum class LogLevel : std::uint8_t { debug, info, warn, error };
// Receives what the library has to say. Called from any thread that calls normjit and from its own, never
// after the Service and its kernels are gone; must be thread-safe, must not throw or call back into the same
// Service.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

// How to launch.
struct LaunchOptions {
  // Programmatic dependent launch: the kernel may start before the one in front of it on the stream has
  // finished, if that one allows it, as normjit's do; loads weight and bias meanwhile, and waits for it
  // before it touches anything else, the workspace included. So weight and bias must not be written by that
  // kernel; those further in front have finished, as normjit's kernels wait themselves before they let the
  // next one start. A graph that captures such launches keeps the overlap. Takes about a microsecond off a
  // chain of short launches. Without effect before sm_90.
  bool overlap_previous = false;
  // What to do in a stream that is being captured where the kernel is not ready. False: nothing; the answer
  // is NotReady, and the capture stays valid. True: make it ready, which may compile; in lazy mode capture
  // the generic kernel, which the graph then keeps for good.
  bool miss_in_capture = false;
};

// Where the machine code of a kernel came from: the memory of this process, which has what it compiled
// itself; the cache directory; a read-only layer; the compiler, just now; the library itself, which has the
// generic kernels; or the store that machines share.
enum class Origin : std::uint8_t { memory, disk, layer, compiled, embedded, remote };
NORMJIT_API std::string_view name(Origin) noexcept;

// A kernel that is compiled, loaded and set up for one device, for all of its contexts, also those that are
// made later. A cheap handle: copy it freely. It stays valid after its Service is gone. Thread-safe: any
// number of threads may launch one handle. Its code is unloaded with the last handle and the Service that
// made it; a graph that captured it does not count, so keep one of them as long as the graph.
class NORMJIT_API Kernel {
 public:
  Kernel() = default;  // empty: launch says EmptyKernel

  // Enqueues the layer normalization on the stream: one kernel, in a graph one kernel node. Takes no lock,
  // allocates nothing and never synchronises. The CUDA context of the stream must be current, as for any
  // launch. Bad arguments are answered before anything is launched: EmptyKernel, NullPointer,
  // UnexpectedPointer, Misaligned, BadRows, BadStride, Overlap, WorkspaceRequired; ForkedAfterCudaInit in a
  // forked child of the process that prepared it; NoContext; WrongDevice where another device's context is
  // current; DriverError or OutOfMemory from the driver itself, also for what another kernel has done;
  // NotResident where it finds no room to run the blocks that share a row together; NotReady for the generic
  // kernel in the place of another, in a stream that is being captured (LaunchOptions::miss_in_capture).
  Status launch(const Tensors& tensors, Stream stream, const LaunchOptions& options = {}) const noexcept;

  // Everything that launch checks, and besides asks the driver about each pointer: WrongDevice for memory
  // that this kernel's device cannot reach (host memory, another GPU), OutOfBounds for a tensor that reaches
  // past its allocation; and Overlap for an output of which an element lies in another operand, unless it is
  // that one in place (Tensors). Costs about a microsecond; the one-call form does it until one launch of
  // each kernel.
  Result<void> check(const Tensors& tensors) const;

  // Where the pointer of an operand lies in the block that kernelParams[0] of the captured launch's kernel
  // node points to (CUDA_KERNEL_NODE_PARAMS), in bytes, for cuGraphExecKernelNodeSetParams. The pointer may
  // be replaced by another on the same device, as aligned as the kernel was prepared for, which the driver
  // does not check; everything else in the block, and other parameters, must stay, for the grid goes with
  // them. cuGraphExecUpdate with a second capture needs to know none of this. Errors: EmptyKernel;
  // UnexpectedPointer for an operand that the kernel does not have.
  Result<std::size_t> node_offset(Operand operand) const;

  std::size_t workspace_bytes() const noexcept;  // 0 for most kernels
  const NormSpec& spec() const noexcept;         // canonical
  const Plan& plan() const noexcept;
  const DeviceProfile& device() const noexcept;
  Origin origin() const noexcept;
  // Whether this is the generic kernel, which serves until the spec's own is compiled (Mode::lazy) or because
  // there is no compiler. Prepare again for the other.
  bool is_fallback() const noexcept;
  explicit operator bool() const noexcept { return static_cast<bool>(prepared_); }

  struct Prepared;  // internal, as what follows
  explicit Kernel(std::shared_ptr<const Prepared> prepared) noexcept : prepared_(std::move(prepared)) {}
  const Prepared& prepared() const noexcept { return *prepared_; }

 private:
  std::shared_ptr<const Prepared> prepared_;
};

// For which launches a kernel is wanted.
struct PrepareOptions {
  int device = -1;             // CUDA ordinal; -1 is the device of the current context
  std::int64_t rows_hint = 0;  // about how many rows; 0 is "many"
  int pointer_alignment = 16;  // bytes: every base pointer is a multiple of this (a power of two)
  std::int64_t x_row_stride = kContiguous;
  std::int64_t y_row_stride = kContiguous;
  // Rows of an operand come in groups: RowsAt with n > 1. Such a kernel also serves rows that do not.
  bool grouped_rows = false;
  // With channels first, Tensors::plane; 0 is a multiple of 8. The strides above are then ignored: samples
  // are a multiple of the plane apart.
  std::int64_t plane = 0;
  // One plan for any number of rows, as Options::batch_invariant.
  bool batch_invariant = false;
  // This very plan instead of a tuned one or the planner's choice; IllegalPlan if it is not legal for spec
  // and device. It pins the last bits of the results, which may otherwise change with row regime, device,
  // tuning and version.
  std::optional<Plan> plan = {};
};

// A plan that was measured to be the fastest for a use of a spec on a device. Kept in the cache directory
// (Service::remember), it is taken instead of the planner's choice on devices with exactly this profile.
struct TunedPlan {
  NormSpec spec;
  DeviceProfile device;
  RowsRegime regime = RowsRegime::many;
  Alignment alignment = Alignment::eight;
  Plan plan;
  std::int64_t rows = 0;        // with so many it was measured,
  double fraction_of_copy = 0;  // and reached this part of a copy's speed; both only shown
};

// One kernel of a prebuild.
struct KernelReport {
  enum class Outcome : std::uint8_t { cached, compiled, failed, missing };  // missing: only in a dry run
  NormSpec spec;
  Arch arch;
  Plan plan;
  std::string id;  // of the cache entry: 32 hexadecimal digits
  Outcome outcome = Outcome::failed;
  double milliseconds = 0;  // to look up, and to compile where that was needed
  std::string error;        // of a failed kernel
  bool unstored = false;    // compiled, but the cache could not keep it
};
NORMJIT_API std::string_view name(KernelReport::Outcome) noexcept;

struct PrebuildReport {
  int requested = 0, cached = 0, compiled = 0, failed = 0, missing = 0, unstored = 0;  // kernels
  double seconds = 0;
  std::vector<KernelReport>
      results;  // in the order of specs, profiles and plans, tuned ones behind the others
};

struct PrebuildOptions {
  // So many kernels are compiled at once; 0 is one per core. Each job is a thread. From the third on, a
  // compile goes to a child process, started when it is first needed and ended before the call returns: NVRTC
  // keeps hardly more than two cores of one process busy. The child is the program normjit-compile, which is
  // installed with this library; where it is missing or other users can write it, the threads compile alone.
  // Nothing else starts a process.
  int jobs = 0;
  // The uses that kernels are built for: by default all of rows that come one by one, and none of groups.
  // batch_invariant is set where Options::batch_invariant is.
  Uses uses = {};
  bool dry_run = false;  // only look: compile and write nothing
  // After each kernel, from one thread at a time; those that take long to compile come first.
  std::function<void(const KernelReport&, int done, int total)> progress = {};
};

// The source of one kernel and the facts of its launch.
struct RenderedKernel {
  Plan plan;
  std::string text;    // a complete CUDA C++ translation unit
  std::string kernel;  // its entry point
};

// What normjit finds on this machine.
struct Environment {
  std::string version;
  std::string cache_directory;  // empty: memory only
  std::string cache_error;      // empty: exists or can be made, and is writable
  struct Layer {
    std::string path;  // or "memory layer 1" and the like
    int entries = 0;
    std::string error;  // empty: it can be read
  };
  std::vector<Layer> layers;
  // The store that machines share. Looking at it takes up to 150 ms.
  struct Remote {
    std::string url;                   // without user, password and query; empty: none is configured
    std::string error;                 // why it is not used, or does not answer; empty: it answers
    double milliseconds = 0;           // of a round trip
    std::vector<std::string> trusted;  // the numbers of the keys that are believed
    std::string signs_as;              // the number of the key that signs what is offered; empty: none
    bool unsigned_values = false;      // whoever can write there is believed
  };
  Remote remote;
  // The pack that is fetched from a URL. Looking at it may fetch it.
  struct RemotePack {
    std::string url;    // without user, password and query; empty: none is configured
    std::string path;   // the copy of this machine, one of the layers
    std::string error;  // why it could not be fetched, or renewed, just now; empty: it could
  };
  RemotePack remote_pack;
  std::vector<Arch> embedded_archs;  // for which the library has the generic kernels
  std::string embedded_error;        // empty: what it has is sound, or it has none
  std::string compiler_path;         // empty: none
  std::string compiler_version;      // "13.0"
  std::string compiler_error;
  std::vector<Arch> compiler_archs;  // that it makes cubins for
  std::string driver_version;        // "13.0"; empty: none
  std::string driver_error;
  struct Device {
    int ordinal;
    std::string name;
    DeviceProfile profile;
  };
  std::vector<Device> devices;
};

// What a Service does where no cache has the kernel that is asked for.
enum class Mode : std::uint8_t {
  eager,        // compiles it and waits; without a compiler the generic kernel serves
  lazy,         // compiles it in the background; meanwhile the generic kernel serves, right and slower
  cached_only,  // answers NotCached; never opens a compiler
};
NORMJIT_API std::string_view name(Mode) noexcept;

// What it does about that after freeze().
enum class Frozen : std::uint8_t { no, warn, error };

// How a Service works. Plain values; from_environment() fills them from NORMJIT_CACHE_DIR (else
// $XDG_CACHE_HOME/normjit, else ~/.cache/normjit), NORMJIT_LAYERS (separated by colons),
// NORMJIT_CACHE_MAX_BYTES (a number, with K, M or G behind it if you like), NORMJIT_CACHE_SHARED (1),
// NORMJIT_REMOTE, NORMJIT_REMOTE_PACK, NORMJIT_REMOTE_UNSIGNED (1), NORMJIT_TRUST (separated by spaces or
// commas), NORMJIT_SIGN_KEY, NORMJIT_MODE (eager, lazy, cached-only), NORMJIT_BATCH_INVARIANT (1),
// NORMJIT_MISS_LOG, NORMJIT_TOOLCHAIN (exact), NORMJIT_NVRTC_PATH, CUDA_HOME (else CUDA_PATH),
// NORMJIT_TEMPLATE_DIR and NORMJIT_LOG (debug, info, warn, error: the built-in log to stderr; off, as when
// unset). A variable with another value counts as unset, and makes one of the warnings.
struct NORMJIT_API Options {
  std::string cache_directory;  // empty: keep kernels in memory only
  // Caches that are only read, searched in this order where the cache directory has no entry: directories, or
  // packs that `normjit export` made. What is found there is copied to the cache directory. More may be added
  // (Service::add_layer).
  std::vector<std::string> layers;
  // Once the cache directory takes more, its oldest entries are removed; 0: it may grow without bound.
  std::int64_t max_cache_bytes = std::int64_t{256} << 20;
  // False: entries, layers and packs are trusted only if this user or root owns them and no other user can
  // write them. True: all are trusted, and what this process makes is shared with other users. Every user who
  // can write there then decides what runs on your GPU.
  bool shared_cache = false;
  // Take only entries that were made by the very version of NVRTC that would compile here, and replace
  // others. A hit then opens libnvrtc.
  bool exact_toolchain = false;
  // A store of kernels that machines share, asked before a kernel is compiled, and offered what was compiled:
  // a URL that begins with redis://, http://, https:// or s3://. Empty: none. What is taken from it must be
  // signed by one of `trust`. A store that is down costs one failed call in 30 seconds.
  std::string remote;
  // The same as functions of the host, in place of a URL (normjit/remote.h). close() is called at the end of
  // each Service that was made with these options.
  std::optional<normjit_remote> remote_store = {};
  // The URL of a pack, http://, https:// or s3://, which is fetched to the cache directory before a kernel is
  // compiled, at most once a minute and only if it is new, and is a layer behind `layers`. It must be signed
  // by one of `trust`, in a file beside it (URL.minisig). Empty: none.
  std::string remote_pack;
  // Takes values without a signature from the store, offers them, and takes such a pack. Everybody who can
  // write there then decides what runs on your GPU.
  bool remote_unsigned = false;
  Mode mode = Mode::eager;
  // The bits of a row never depend on how many other rows a launch has: one plan for a spec and an Alignment,
  // the best for many rows whose sums depend on no address. Tuned plans are not taken, and no generic kernel
  // serves while another is compiled.
  // Still other bits may come from another version, another architecture or another alignment, and from a GPU
  // that has no room for blocks which must run together (Code::NotResident).
  bool batch_invariant = false;
  // A file to which a line is appended for every spec that no cache had: a manifest for the next prebuild.
  // Best effort; empty: none.
  std::string miss_log;
  EventCallback on_event;          // empty: none
  std::string compiler_path;       // a libnvrtc to use instead of searching
  std::string cuda_home;           // a CUDA toolkit to look for libnvrtc in
  std::string template_directory;  // read templates from here instead of the embedded ones
  LogCallback log;                 // empty: silence
  // The public keys of those whose signatures are believed: "RW..." of 56 characters, or paths of .pub files.
  // Where there are some, only packs that one of them has signed are layers, are added (add_layer) or are
  // imported. Empty: signatures are not looked at.
  std::vector<std::string> trust;
  // The file of the secret key to sign with: minisign's format, without a password, readable by its owner
  // only. It is read when something is to be signed. Empty: nothing can be signed.
  std::string sign_key;
  // What from_environment() found and does not understand, a sentence each. A Service says it once, through
  // its log, when it is made.
  std::vector<std::string> warnings;

  static Options from_environment();
};

class Compiler;
class Driver;
class FileSystem;
// Replacements for what a Service stands on; null is the real one. For tests and measurements.
struct Seams {
  std::shared_ptr<Compiler> compiler;
  std::shared_ptr<Driver> driver;
  std::shared_ptr<FileSystem> files;
  // A pack in place of the library's own, which must live as long; empty: no kernel is embedded.
  std::optional<std::string_view> embedded = {};
};

// Plans, generates, compiles, caches and loads kernels. Thread-safe. One per process is enough: it serves all
// devices. Constructing it touches nothing: no file, no CUDA call, no thread. The environment is read by
// from_environment() only.
//
// A process may fork at any time, also while other threads prepare: a fork waits for the compiles that are
// under way, and then the child can do all that its parent could, except that a GPU serves it only if the
// parent had not initialised CUDA (ForkedAfterCudaInit). The end of the process waits for these compiles,
// too; threads that still prepare get the error NoCompiler.
class NORMJIT_API Service {
 public:
  explicit Service(Options options = Options::from_environment(), Seams seams = {});
  ~Service();
  Service(Service&&) noexcept;
  Service& operator=(Service&&) noexcept;

  // The kernel for this spec and use, from memory, disk or the compiler; loaded and ready, so that the first
  // launch costs what every launch costs. Where it would have to be compiled, the mode decides: in lazy mode
  // the generic kernel is returned until its compile is done. Concurrent calls for one kernel share one
  // compile. Never changes
  // the current context. Errors: those of validate; BadArgument; NotCached; NoDriver, DriverTooOld,
  // NoContext, NoDevice, ForkedAfterCudaInit; NoCompiler, CompileFailed...
  Result<Kernel> prepare(const NormSpec& spec, const PrepareOptions& options = {});

  // After warm-up: from now on a kernel that no cache has is warned of when it is compiled, or is the error
  // NotCached. Kernels that are in a cache are still loaded. Frozen::no ends it. Background compiles that are
  // under way go on.
  void freeze(Frozen when_missing = Frozen::error);
  // Returns when no compile is under way in the background. After it, prepare() and norm() have the
  // kernels that were compiled.
  void wait_for_compiles();
  // What has happened so far. Costs about as much as a launch.
  Counters counters() const;

  // Prepares (the first time) and launches the kernel that fits these very tensors, on the current context's
  // device. The first use of a kernel checks the pointers as Kernel::check does. A plan that needs a
  // workspace says WorkspaceRequired without one; workspace_bytes() tells its size. Where a device, or the
  // share of it that this process has (MIG, MPS), cannot run together the blocks that share a row, another
  // plan serves, from then on. From a kernel's second launch on it takes no lock, counts no reference and
  // allocates nothing, so that any number of threads may call it at once.
  Result<void> norm(const NormSpec& spec, const Tensors& tensors, Stream stream,
                    const LaunchOptions& options = {});
  // The same under its older name.
  Result<void> layer_norm(const NormSpec& spec, const Tensors& tensors, Stream stream,
                          const LaunchOptions& options = {}) {
    return norm(spec, tensors, stream, options);
  }

  // Workspace that suffices for every launch of this spec through norm on the current context's device.
  Result<std::size_t> workspace_bytes(const NormSpec& spec);

  // Keeps a tuned plan in the cache directory, in the place of an older one for the same use. Services made
  // from now on take it; this one goes on as it has begun where it has looked for one before, so that kernels
  // and workspace_bytes() agree. Without a workspace, norm takes no tuned plan that needs one. Errors:
  // those of validate; IllegalPlan, also for a plan whose accesses the alignment does not allow; CacheIo.
  Result<void> remember(const TunedPlan& tuned);
  // The plan that is kept for this use, if there is one that is legal.
  Result<std::optional<Plan>> tuned(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                    Alignment alignment) const;

  // Puts every kernel that these specs can ask for on these devices into the cache: those of plans(), and of
  // the tuned plans that the cache keeps for any device of such an architecture. Needs no GPU and no
  // driver. Errors: those of validate, and BadArgument when there is nothing to do; a kernel that fails is
  // counted in the report, not an error of the call.
  Result<PrebuildReport> prebuild(std::span<const NormSpec> specs, std::span<const DeviceProfile> devices,
                                  const PrebuildOptions& options = {});

  // The source that prepare would compile.
  Result<RenderedKernel> render(const NormSpec& spec, const DeviceProfile& device, RowsRegime regime,
                                Alignment alignment) const;
  // The source of this very plan. IllegalPlan.
  Result<RenderedKernel> render(const NormSpec& spec, const DeviceProfile& device, const Plan& plan) const;

  // The entries of the cache directory, by id, and behind them those of each layer. CacheIo if the directory
  // cannot be read; a missing one is empty.
  Result<std::vector<EntryReport>> entries() const;
  // Reads and checks every entry of the directory and of the layers. With `quarantine`, damaged ones in the
  // directory are moved out of the way (`*.damaged`). CacheIo as of entries.
  Result<VerifyReport> verify(bool quarantine = false);
  // Trims the cache directory, and clears away what killed processes and damaged entries left. CacheIo if it
  // cannot be read.
  Result<PruneReport> prune(const PruneOptions& options = {});
  // Writes entries into one file, which serves as a layer. The same entries make the same bytes, whatever
  // their order and age. If a kernel is missing, nothing is written. CacheIo if `path` cannot be written or a
  // source cannot be read; BadArgument if `path` does not end in .njp, only one of specs and devices is
  // given, or there is nothing to write; those of validate, and those of a secret key where it is to be
  // signed.
  Result<ExportReport> export_pack(const std::string& path, const ExportOptions& options = {}) const;
  // Copies the sound entries of directories and packs to the cache directory, which keeps what it has. With
  // Options::trust, a pack NAME.njp needs NAME.njp.minisig of one of these keys beside it. CacheIo if a
  // source cannot be read, there is no cache directory, or a signature cannot be checked without libsodium;
  // Untrusted, and nothing is copied, for a signature that is missing or not right; BadArgument for a trusted
  // key that is none.
  Result<ImportReport> import_from(const std::vector<std::string>& sources);
  // Adds a layer, the bytes of a pack, as a job's first process sends them to the others. This Service keeps
  // them. From now on it searches them behind its other layers; reports call it "memory layer 1". Kernels
  // that are ready, and uses for which a tuned plan was looked for, stay as they are. With Options::trust
  // `signature` is the text of the pack's .minisig file. Errors, and nothing changes: BadArgument for bytes
  // that are no pack, or one that is cut or whose index is damaged (entries are checked when they are used),
  // and for a trusted key that is none; Untrusted for a signature that is missing or not right; CacheIo if it
  // cannot be checked without libsodium, or a key cannot be read.
  Result<void> add_layer(std::string pack, const std::string& signature = {});
  // Copies kernels between the cache and the store that machines share (Options::remote), or looks at what it
  // has: those that these specs can ask for on these devices, as prebuild has them; without specs and
  // devices, put and verify, those of the cache directory and the layers. Compiles nothing. Asks the store
  // although it counts as down, and uses it again if it answers. Errors: those of validate; BadArgument if no
  // store is configured, only one of specs and devices is given, or get has neither; CacheIo if the cache
  // cannot be read or the store cannot be used.
  Result<RemoteReport> remote(RemoteTask task, std::span<const NormSpec> specs = {},
                              std::span<const DeviceProfile> devices = {}, const Uses& uses = {});
  // For every kernel that a spec can ask for on a device: where it is, or why it would be compiled. Compiles
  // nothing. Errors: those of validate.
  Result<std::vector<WhyReport>> why(const NormSpec& spec, const DeviceProfile& device,
                                     const Uses& uses = {});
  // The same for the kernel of this very plan; IllegalPlan if the spec has no such kernel.
  Result<WhyReport> why(const NormSpec& spec, const DeviceProfile& device, const Plan& plan);

  // The profile of a device of this machine (-1: the current context's). NoDriver, NoContext, NoDevice.
  Result<DeviceProfile> device(int ordinal = -1);

  // Looks for compiler, driver, devices and cache. Opens libnvrtc and initialises the driver.
  Environment environment();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normjit
