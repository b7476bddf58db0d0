// SPDX-License-Identifier: Apache-2.0
#include "simt/runtime_calls.h"

#include "simt/execution.h"

namespace normjit::simt {
namespace {

Execution& running() { return *Execution::current(); }
std::uint64_t* word(unsigned long long* at) { return reinterpret_cast<std::uint64_t*>(at); }
const std::uint64_t* word(const unsigned long long* at) { return reinterpret_cast<const std::uint64_t*>(at); }

}  // namespace

const Runtime& runtime_calls() {
  static const Runtime calls = {
      .self = [] { return running().self(); },
      .access = [](const void* at, unsigned long bytes, bool write, bool aligned,
                   const void* pc) { running().access(at, bytes, write, aligned, pc); },
      .misaligned = [](const void* at, unsigned long bytes,
                       const void* pc) { running().misaligned(at, bytes, pc); },
      .shared = [](const void* key, unsigned long bytes, unsigned long alignment,
                   Place place) { return running().shared(key, bytes, alignment, place); },
      .dynamic_shared = [](Place place) { return running().dynamic_shared(place); },
      .lane = [] { return running().lane(); },
      .shuffle = [](unsigned long long bits, unsigned from, unsigned members, Place place)
          -> unsigned long long { return running().shuffle(bits, from, members, place); },
      .warp_barrier = [](unsigned members, Place place) { running().warp_barrier(members, place); },
      .block_barrier = [](Place place) { running().block_barrier(place); },
      .add = [](unsigned long long* counter, unsigned long long n, bool ordered, const void* pc)
          -> unsigned long long { return running().add(word(counter), n, ordered, pc); },
      .wait_until = [](const unsigned long long* counter, unsigned long long value, Place place,
                       const void* pc) { running().wait_until(word(counter), value, place, pc); },
      .gather = [](const unsigned long long* slot, unsigned tag, Place place, const void* pc)
          -> unsigned long long { return running().gather(word(slot), tag, place, pc); },
      .copy_async =
          [](void* to, const void* from, int bytes, const void* pc) {
            running().copy_async(to, from, static_cast<std::size_t>(bytes), pc);
          },
      .copies_commit = [] { running().copies_commit(); },
      .copies_wait = [](int left) { running().copies_wait(static_cast<unsigned>(left)); },
      .barrier_init = [](unsigned long long* barrier, int arrivals,
                         const void* pc) { running().barrier_init(word(barrier), arrivals, pc); },
      .barriers_ready = [] { running().barriers_ready(); },
      .barrier_arrive = [](unsigned long long* barrier, int bytes,
                           Place place) { running().barrier_arrive(word(barrier), bytes, place); },
      .barrier_wait = [](unsigned long long* barrier, unsigned parity,
                         Place place) { running().barrier_wait(word(barrier), parity, place); },
      .bulk_load =
          [](void* to, const void* from, int bytes, unsigned long long* barrier, Place place,
             const void* pc) {
            running().bulk_load(to, from, static_cast<std::size_t>(bytes), word(barrier), place, pc);
          },
      .cluster_enter = [](Place place) { running().cluster_enter(place); },
      .cluster_entered = [](Place place) { running().cluster_entered(place); },
      .send =
          [](void* to, const void* value, int bytes, unsigned long long* barrier, int rank, Place place,
             const void* pc) {
            running().send(to, value, static_cast<std::size_t>(bytes), word(barrier), rank, place, pc);
          },
      .wait_for_previous_launch = [] { running().wait_for_previous_launch(); },
  };
  return calls;
}

}  // namespace normjit::simt
