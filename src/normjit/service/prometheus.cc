// SPDX-License-Identifier: Apache-2.0
// The counters of a Service in Prometheus' text format.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "normjit/base/text.h"
#include "normjit/base/utf8.h"
#include "normjit/telemetry.h"

namespace normjit {
namespace {

constexpr std::string_view kReserved[] = {"le", "tier", "version"};  // labels of our own

bool is_label_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !is_letter(name[0]) || name.starts_with("__")) return false;
  for (const char c : name)
    if (!is_letter(c) && !(c >= '0' && c <= '9')) return false;
  return true;
}

// Ok, or what is wrong with the labels.
Result<void> check(std::span<const Label> labels) {
  for (const Label& label : labels) {
    if (!is_label_name(label.name))
      return Error{
          Code::BadArgument,
          concat({"label '", label.name,
                  "': a name is a letter or _, then letters, digits and _, and does not begin with __"})};
    if (std::ranges::find(kReserved, label.name) != std::end(kReserved))
      return Error{Code::BadArgument, concat({"label '", label.name, "' is one of normjit's own"})};
    if (!is_utf8(label.value))
      return Error{Code::BadArgument, concat({"the value of label '", label.name, "' is not UTF-8"})};
    if (std::ranges::count(labels, label.name, &Label::name) > 1)
      return Error{Code::BadArgument, concat({"label '", label.name, "' is given twice"})};
  }
  return {};
}

std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text;
}

// The text of a page.
class Page {
 public:
  explicit Page(std::span<const Label> labels) {
    for (const auto& [name, value] : labels) common_ += pair(name, value);
  }

  // Begins a metric; its samples follow.
  void metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = concat({"normjit_", name});
    text_ += concat({"# HELP ", name_, " ", help, "\n# TYPE ", name_, " ", type, "\n"});
  }
  template <class Number>
  void sample(Number value, std::initializer_list<Label> own = {}, std::string_view suffix = {}) {
    std::string labels = common_;
    for (const auto& [name, of] : own) labels += pair(name, of);
    if (!labels.empty()) {
      labels.back() = '}';  // in place of the last comma
      labels.insert(0, "{");
    }
    text_ += concat({name_, suffix, labels, " ", shortest(value), "\n"});
  }
  void counter(std::string_view name, std::string_view help, std::uint64_t value) {
    metric(name, "counter", help);
    sample(value);
  }
  void histogram(std::string_view name, std::string_view help, double milliseconds,
                 const Durations& durations) {
    metric(name, "histogram", help);
    std::uint64_t so_far = 0;
    for (std::size_t i = 0; i < durations.buckets.size(); ++i) {
      so_far += durations.buckets[i];
      const bool is_last = i == Durations::kBounds.size();
      sample(so_far, {{"le", is_last ? "+Inf" : shortest(Durations::kBounds[i] / 1000)}}, "_bucket");
    }
    sample(milliseconds / 1000, {}, "_sum");
    sample(so_far, {}, "_count");
  }

  std::string text() && { return std::move(text_); }

 private:
  static std::string pair(std::string_view name, std::string_view value) {
    return concat({name, "=\"", escaped(value), "\","});
  }

  std::string common_;  // name="value", for each label, with a comma behind each
  std::string name_;    // of the metric
  std::string text_;
};

}  // namespace

Result<std::string> to_prometheus(const Counters& c, std::span<const Label> labels) {
  if (auto valid = check(labels); !valid) return valid.error();
  Page page(labels);
  page.metric("build_info", "gauge", "The version of normjit.");
  page.sample(1, {{"version", NORMJIT_VERSION}});
  page.metric("hits_total", "counter", "Kernels that were found, by where.");
  page.sample(c.memory_hits, {{"tier", "memory"}});
  page.sample(c.disk_hits, {{"tier", "disk"}});
  page.sample(c.layer_hits, {{"tier", "layer"}});
  page.sample(c.embedded_hits, {{"tier", "embedded"}});
  page.sample(c.remote_hits, {{"tier", "remote"}});
  page.counter("misses_total", "Kernels that no cache of this machine had.", c.misses);
  page.counter("compiles_total", "Compiles that succeeded.", c.compiles);
  page.counter("failed_compiles_total", "Compiles that failed.", c.failed_compiles);
  page.histogram("compile_seconds", "Time to compile a kernel, also in vain.", c.compile_ms,
                 c.compile_durations);
  page.histogram("load_seconds", "Time to load a kernel into the driver.", c.load_ms, c.load_durations);
  page.counter("fallback_launches_total", "Launches of the generic kernel in place of a spec's own.",
               c.fallback_launches);
  page.counter("damaged_entries_total", "Damaged cache entries that were found.", c.damaged_entries);
  page.histogram("lock_wait_seconds", "Waits for another process that was compiling the same kernel.",
                 c.lock_wait_ms, c.lock_wait_durations);
  page.counter("remote_misses_total", "Kernels that the remote store did not have.", c.remote_misses);
  page.counter("remote_errors_total", "Calls of the remote store that failed.", c.remote_errors);
  page.counter("remote_untrusted_total", "Values of the remote store that were not believed.",
               c.remote_untrusted);
  page.counter("remote_stored_total", "Compiled kernels that the remote store took, or had.",
               c.remote_stored);
  page.counter("remote_read_bytes_total", "Bytes of the values that the remote store had.", c.remote_bytes);
  page.histogram("remote_wait_seconds", "Waits for another machine that was compiling the same kernel.",
                 c.remote_wait_ms, c.remote_wait_durations);
  return std::move(page).text();
}

}  // namespace normjit
