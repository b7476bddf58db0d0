// SPDX-License-Identifier: Apache-2.0
#include "normjit/service/miss_log.h"

#include <fcntl.h>

#include <mutex>

#include "normjit/base/json.h"
#include "normjit/base/text.h"
#include "normjit/cache/system_call.h"

namespace normjit {

// One write for each line, so that lines of several processes do not mix. Non-blocking: a pipe without a
// reader is an error.
void MissLog::add(const std::string& spec, std::string_view arch) {
  if (path_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!written_.insert(spec).second) return;
  }
  const Json entry = {{"spec", spec}, {"comment", concat({"missed on ", arch})}};
  const std::string line = entry.line() + "\n";
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int file = uninterrupted([&] { return files_->open(path_.c_str(), kFlags, 0644); });
  const long wrote =
      file < 0 ? -1 : uninterrupted([&] { return files_->write(file, line.data(), line.size()); });
  const int reason = wrote < 0 ? errno : ENOSPC;
  if (file >= 0) files_->close(file);
  if (wrote != static_cast<long>(line.size()))
    warn_(Trouble::unwritten, io_error("append to the miss log", path_, reason).message);
}

}  // namespace normjit
