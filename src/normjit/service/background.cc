// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/background.h"

#include <pthread.h>

#include <algorithm>
#include <thread>

#include "normjit/base/start_thread.h"

namespace normjit {

void Background::renew_after_fork() const {
  State& state = *state_;
  if (state.generation == fork_generation()) return;
  state.generation = fork_generation();
  std::construct_at(&state.changed);  // its waiters were threads of the parent
  state.queue.clear();
  state.threads = 0;
  std::erase_if(newest_, [](const auto& known) { return known.second->state == Job::State::waiting; });
}

const Job* Background::find(const std::string& key) const {
  const std::lock_guard lock(state_->mutex);
  renew_after_fork();
  const auto found = newest_.find(key);
  return found == newest_.end() ? nullptr : found->second;
}

// Half of the cores are left to the host's threads. Counting cores reads a file and takes 60 us of a
// process's first call, so it is done when the first job comes.
int Background::most_threads() const {
  if (state_->most_threads == 0)
    state_->most_threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1U, 4U));
  return state_->most_threads;
}

const Job* Background::start(const std::string& key, Work work) {
  const int most = most_threads();
  Job* job = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    renew_after_fork();
    Job*& newest = newest_[key];
    if (newest != nullptr && newest->state != Job::State::done) return newest;
    job = newest = &jobs_.emplace_back();
    state_->queue.push_back({job, std::move(work)});
    if (state_->threads == most) return job;
    ++state_->threads;
  }
  if (start_thread([state = state_] { run(state); })) return job;
  const std::lock_guard lock(state_->mutex);
  --state_->threads;
  if (state_->threads > 0) return job;  // another thread will run it
  std::erase_if(state_->queue, [&](const Task& task) { return task.job == job; });
  newest_.erase(key);
  return nullptr;
}

void Background::run(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "normjit");
  std::unique_lock lock(state->mutex);
  while (!state->queue.empty()) {
    Task task = std::move(state->queue.front());
    state->queue.pop_front();
    lock.unlock();
    bool succeeded = false;
    try {
      succeeded = task.work();
    } catch (...) {  // std::bad_alloc: a failure like any other
    }
    task.work = nullptr;  // frees what it holds before the end is known
    lock.lock();
    task.job->state = succeeded ? Job::State::done : Job::State::failed;
  }
  --state->threads;
  state->changed.notify_all();
}

void Background::wait() {
  std::unique_lock lock(state_->mutex);
  renew_after_fork();
  while (state_->threads > 0) state_->changed.wait(lock);
}

Background::~Background() {
  {
    const std::lock_guard lock(state_->mutex);
    renew_after_fork();
    state_->queue.clear();
  }
  wait();
}

}  // namespace normjit
