// SPDX-License-Identifier: Apache-2.0
#include "simt/clocks.h"

#include <algorithm>

namespace normjit::simt {

void Clocks::reset(std::size_t threads) { threads_.assign(threads, State{}); }

void Clocks::begin(Thread thread) {
  State& state = threads_[thread];
  state.known = nullptr;
  state.begun = ++state.own;
}

std::shared_ptr<std::vector<Clocks::Time>> Clocks::copied(const Knowledge& known) const {
  return known ? std::make_shared<std::vector<Time>>(*known)
               : std::make_shared<std::vector<Time>>(threads_.size(), 0);
}

Clocks::Knowledge Clocks::merged(const Knowledge& a, const Knowledge& b) const {
  if (!a || a == b) return b;
  if (!b) return a;
  const auto all = copied(a);
  for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = std::max((*all)[i], (*b)[i]);
  return all;
}

void Clocks::release(Thread thread, Knowledge& to) {
  State& state = threads_[thread];
  const auto all = copied(merged(to, state.known));
  (*all)[thread] = std::max((*all)[thread], state.own++);
  to = all;
}

void Clocks::acquire(Thread thread, const Knowledge& from) {
  threads_[thread].known = merged(threads_[thread].known, from);
}

// Threads that met before share what they know, so that there is little to merge.
void Clocks::meet(std::span<const Thread> threads) {
  Knowledge known, last;
  for (const Thread thread : threads) {
    const Knowledge& one = threads_[thread].known;
    if (one == last) continue;
    known = merged(known, one);
    last = one;
  }
  const auto all = copied(known);
  for (const Thread thread : threads) (*all)[thread] = std::max((*all)[thread], threads_[thread].own++);
  const Knowledge shared = all;
  for (const Thread thread : threads) threads_[thread].known = shared;
}

Clocks::Time Clocks::send(Thread thread, Thread helper, Knowledge& knowledge) {
  release(thread, knowledge);
  const Time when = threads_[helper].own++;
  const auto all = copied(knowledge);
  (*all)[helper] = when;
  knowledge = all;
  threads_[helper].known = merged(threads_[helper].known, knowledge);
  return when;
}

}  // namespace normjit::simt
