// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "cli/table.h"

namespace normjit::cli {

std::string time_left(double seconds, int done, int total) {
  if (done < 1 || done >= total || seconds < 1) return "";
  const double left = seconds / done * (total - done);
  const auto text = [](double number, const char* unit) {
    return "about " + fixed(std::ceil(number), 0) + unit + " left";
  };
  return left < 120 ? text(left, " s") : left < 7200 ? text(left / 60, " min") : text(left / 3600, " h");
}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', stderr);
}

void Progress::show(const KernelReport& kernel, int done, int total) {
  const bool failed = kernel.outcome == KernelReport::Outcome::failed;
  failed_ += failed;
  std::string things = "kernels";
  if (failed_ > 0) things += ", " + std::to_string(failed_) + " failed";
  show(done, total, things,
       std::string(name(kernel.outcome)) + " " + fixed(kernel.milliseconds, 1) + " ms  " +
           kernel.arch.name() + "  " + to_text(kernel.spec) + "  " + to_text(kernel.plan));
}

void Progress::show(int done, int total, const std::string& things, const std::string& line) {
  const std::string count = std::to_string(done) + "/" + std::to_string(total);
  std::string left = time_left(std::chrono::duration<double>(Clock::now() - begun_).count(), done, total);
  if (!left.empty()) left.insert(0, ", ");
  std::string text;
  if (terminal_) {
    constexpr int kWidth = 30;
    const int full = total > 0 ? kWidth * done / total : kWidth;
    text = "\r[" + std::string(full, '#') + std::string(kWidth - full, '.') + "] " + count + " " + things +
           left + "\x1b[K";  // the rest of a longer line before
  } else {
    text = "[" + count + left + "] " + line + "\n";
  }
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  line_open_ = terminal_;
}

}  // namespace normjit::cli
