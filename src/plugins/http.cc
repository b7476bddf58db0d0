// SPDX-License-Identifier: Apache-2.0
// A web server or S3 as the store that machines share, with libcurl:
//
//   http[s]://[user:password@]host[:port][/folder]            values are at FOLDER/nj1/ID; ':' of a key is
//   '/' there s3://bucket[/prefix][?region=REGION&endpoint=https://host:port]
//
// A server answers GET, and PUT with "If-None-Match: *" or without regard to it. S3 is asked by path-style
// addresses, with the credentials of AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN;
// AWS_REGION or AWS_DEFAULT_REGION, else us-east-1; AWS_ENDPOINT_URL, else Amazon's. They are read when a
// session is opened. S3 says 403 of an absent value to who may not list the bucket, so that right is needed.
#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <system_error>

#include "normjit/export.h"
#include "plugins/plugin.h"

namespace normjit::plugins {
namespace {

// To connect, of which a TLS handshake is a part. A machine that takes longer is down, or too far away to be
// of use.
constexpr long kConnectMs = 50;
constexpr long kConnectTlsMs = 100;
constexpr long kConnectForFileMs = 500;  // a process asks for a file at most once a minute
// What a server says besides a value is read up to here, so that the connection can be kept.
constexpr std::size_t kMostOfPage = 64 * 1024;
constexpr unsigned kSignsS3Since = 0x075800;  // 7.88: also headers of the caller, and the digest in them

std::once_flag curl_started;
CURLcode curl_start = CURLE_FAILED_INIT;

// A write to a connection that the server has closed raises SIGPIPE where a TLS library writes by itself. The
// signal is this thread's own, so it is held back here and taken off.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec no_time{};
    while (!was_pending_ && ::sigtimedwait(&pipe_, nullptr, &no_time) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

curl_socket_t open_socket(void*, curlsocktype, curl_sockaddr* address) {
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

struct FreeEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using List = std::unique_ptr<curl_slist, FreeList>;

List list_of(const std::vector<std::string>& lines) {
  List list;
  for (const std::string& line : lines) {
    curl_slist* const longer = curl_slist_append(list.get(), line.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    list.release();
    list.reset(longer);
  }
  return list;
}

// Where values are, and as whom they are asked for.
struct Place {
  std::string name;  // for sentences
  std::string base;  // what comes before '/' and a value's path; of a file, all
  bool is_file = false;
  bool is_tls = false;
  std::string user, password;
  std::string signature;  // of CURLOPT_AWS_SIGV4; empty: the user and password go as they are
  std::string token;      // of temporary credentials
};

// What arrives.
struct Body {
  CURL* easy;
  bool is_asked_for;  // a value is
  std::size_t max_bytes;
  std::string bytes = {};  // of the value
  std::string page = {};   // what is no value
  bool is_too_large = false;

  bool is_value() const {
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    return is_asked_for && status == 200;
  }
};

// False: no memory, which may not be said by an exception through libcurl.
bool append(std::string& text, const char* bytes, std::size_t size) noexcept {
  try {
    text.append(bytes, size);
    return true;
  } catch (...) {
    return false;
  }
}

// Keeps the value of the header line "ETag: ...".
std::size_t take_etag(char* line, std::size_t, std::size_t size, void* to) {
  constexpr std::string_view kName = "etag:", kBlanks = " \t\r\n";
  std::string_view text(line, size);
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
  if (!std::ranges::equal(text.substr(0, kName.size()), kName, {}, lower)) return size;
  text.remove_prefix(kName.size());
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
  std::string& etag = *static_cast<std::string*>(to);
  etag.clear();
  return append(etag, text.data(), text.size()) ? size : 0;
}

std::size_t take_body(char* bytes, std::size_t, std::size_t size, void* to) {
  constexpr std::size_t kStop = CURL_MAX_WRITE_SIZE + 1;  // any other number than `size`
  Body& body = *static_cast<Body*>(to);
  if (!body.is_value()) {
    if (body.page.size() + size > kMostOfPage) return kStop;
    return append(body.page, bytes, size) ? size : kStop;
  }
  curl_off_t announced = -1;
  curl_easy_getinfo(body.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &announced);
  const std::size_t room = body.max_bytes - body.bytes.size();
  body.is_too_large =
      size > room || (announced >= 0 && static_cast<std::uint64_t>(announced) > body.max_bytes);
  if (body.is_too_large) return kStop;
  return append(body.bytes, bytes, size) ? size : kStop;
}

class Session {
 public:
  // Throws std::bad_alloc.
  explicit Session(Place place, const std::string& version = {})
      : place_(std::move(place)), easy_(curl_easy_init()) {
    if (easy_ == nullptr) throw std::bad_alloc();
    // "Expect:" takes off curl's "Expect: 100-continue", and the wait for its answer. curl 7.88 would sign
    // that empty header, which is not sent: S3 waits a millisecond instead, for values of more than a
    // megabyte.
    std::vector<std::string> get, put = {"Content-Type: application/octet-stream", "If-None-Match: *"};
    if (place_.signature.empty()) {
      put.emplace_back("Expect:");
    } else {
      // S3 wants the digest of what is sent, which curl signs but does not give by itself. None of a value:
      // digesting it would take time that no limit bounds, and its bytes carry a signature of their own.
      get.emplace_back(
          "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
      put.emplace_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    }
    if (!place_.token.empty()) {
      get.push_back("x-amz-security-token: " + place_.token);
      put.push_back(get.back());
    }
    may_be_unchanged_ = !version.empty();
    if (may_be_unchanged_) get.push_back("If-None-Match: " + version);
    get_headers_ = list_of(get);
    put_headers_ = list_of(put);

    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    set(CURLOPT_WRITEFUNCTION, take_body);
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_HTTP09_ALLOWED, 0L);
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // one request at a time
    set(CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
    set(CURLOPT_USERAGENT, "normjit");
#if LIBCURL_VERSION_NUM >= 0x075500
    set(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
    set(CURLOPT_QUICK_EXIT, 1L);  // else the end of a call waits for a lookup of the host's address
#endif
    if (!place_.user.empty() || !place_.password.empty()) {
      set(CURLOPT_USERNAME, place_.user.c_str());
      set(CURLOPT_PASSWORD, place_.password.c_str());
      set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    }
    if (!place_.signature.empty()) set(CURLOPT_AWS_SIGV4, place_.signature.c_str());
  }

  ~Session() {
    const WithoutSigpipe quiet;  // the end of a TLS connection is written
    easy_.reset();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Outcome get(std::string_view key, std::size_t max_bytes, normjit_remote_sink sink, void* to, int timeout_ms,
              const Why& why) {
    set(CURLOPT_CUSTOMREQUEST, nullptr);
    set(CURLOPT_HTTPGET, 1L);
    set(CURLOPT_HTTPHEADER, get_headers_.get());
    Body body{easy_.get(), true, max_bytes};
    const long status = perform(key, body, timeout_ms, why);
    if (body.is_too_large)
      return why.refused({place_.name, place_.is_file ? " has more than " : " has a value of more than ",
                          std::to_string(max_bytes), " bytes"});
    if (status == 0) return NORMJIT_REMOTE_FAILED;
    if (status == 404 || status == 410) return NORMJIT_REMOTE_ABSENT;
    if (status == 304 && may_be_unchanged_) return NORMJIT_REMOTE_UNCHANGED;
    if (status != 200) return refused(status, body.page, why);
    // No value is empty, but an answer looks so whose connection ended within its headers.
    if (body.bytes.empty()) return why.failed({place_.name, " answered without a value"});
    sink(to, body.bytes.data(), body.bytes.size());
    return NORMJIT_REMOTE_DONE;
  }

  // Of the file that the place is. *etag is set, to an empty text if there is none.
  Outcome fetch(std::size_t max_bytes, normjit_remote_sink sink, void* to, std::string& etag, int timeout_ms,
                const Why& why) {
    set(CURLOPT_HEADERFUNCTION, take_etag);
    set(CURLOPT_HEADERDATA, &etag);
    return get("", max_bytes, sink, to, timeout_ms, why);
  }

  Outcome put(std::string_view key, std::string_view value, int timeout_ms, const Why& why) {
    // As a POST by another name: curl then has the whole value, to sign it and to send it again over a new
    // connection.
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(value.size()));
    set(CURLOPT_POSTFIELDS, value.data() != nullptr ? value.data() : "");
    set(CURLOPT_CUSTOMREQUEST, "PUT");
    set(CURLOPT_HTTPHEADER, put_headers_.get());
    Body body{easy_.get(), false, 0};
    const long status = perform(key, body, timeout_ms, why);
    curl_easy_setopt(easy_.get(), CURLOPT_POSTFIELDS, nullptr);  // curl 7.88 signs it with a GET too
    if (status == 0) return NORMJIT_REMOTE_FAILED;
    for (const long done : {200, 201, 202, 204}) {
      if (status == done) return NORMJIT_REMOTE_DONE;
    }
    const bool has_older = status == 412 || status == 409 || status == 304;  // 304: nginx
    return has_older ? NORMJIT_REMOTE_DONE : refused(status, body.page, why);
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    if (curl_easy_setopt(easy_.get(), option, value) != CURLE_OK)
      throw std::bad_alloc();  // all of them are known
  }

  // The status of the answer, or 0, and `why` is written.
  long perform(std::string_view key, Body& body, int timeout_ms, const Why& why) {
    const auto failed = [&](std::initializer_list<std::string_view> parts) {
      why.failed(parts);
      return 0L;
    };
    const std::string within = concat({" within ", std::to_string(timeout_ms), " ms"});
    if (timeout_ms <= 0) return failed({place_.name, " did not answer", within});
    std::string path(key);
    std::replace(path.begin(), path.end(), ':', '/');
    const std::string url = concat({place_.base, place_.is_file ? "" : "/", path});
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_WRITEDATA, &body);
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_ms));
    const long patience = place_.is_file ? kConnectForFileMs : place_.is_tls ? kConnectTlsMs : kConnectMs;
    const long connecting = std::min<long>(patience, timeout_ms);
    set(CURLOPT_CONNECTTIMEOUT_MS, connecting);
    const CURLcode code = [&] {
      const WithoutSigpipe quiet;
      return curl_easy_perform(easy_.get());
    }();
    long status = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    // A page may be cut off: its status says enough.
    if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && !body.is_value())) return status;
    if (code == CURLE_OPERATION_TIMEDOUT) {
      double sent = 0;
      curl_easy_getinfo(easy_.get(), CURLINFO_PRETRANSFER_TIME, &sent);
      if (sent > 0) return failed({place_.name, " did not answer", within});
      return failed({place_.name, " was not reached within ", std::to_string(connecting), " ms"});
    }
    // curl's own longer texts may quote more than is to be said.
    long error = 0;
    if (code == CURLE_COULDNT_CONNECT) curl_easy_getinfo(easy_.get(), CURLINFO_OS_ERRNO, &error);
    if (error != 0)
      return failed(
          {place_.name, " was not reached: ", std::generic_category().message(static_cast<int>(error))});
    return failed({place_.name, ": ", curl_easy_strerror(code)});
  }

  Outcome refused(long status, std::string_view page, const Why& why) const {
    const bool is_s3 = !place_.signature.empty();
    const std::string_view code = is_s3 ? code_of(page) : "";
    std::string_view meaning;
    if (status == 401) meaning = ": it asks for a user and password, or does not accept those of the URL";
    if (status >= 300 && status < 400) meaning = ", which sends elsewhere; that is not followed";
    if (code == "AccessDenied")
      meaning = ": no right to this, or no such value and no right to list the bucket";
    if (code == "RequestTimeTooSkewed") meaning = ": the clock of this machine is wrong";
    // A server that is overloaded or broken is down for a while; another answer is about this request.
    const bool is_down = status >= 500 && status != 501 && status != 507;
    const std::string sentence =
        concat({place_.name, " answered ", std::to_string(status), code.empty() ? "" : " ", code, meaning});
    return is_down ? why.failed({sentence}) : why.refused({sentence});
  }

  // S3's name for an error, "SlowDown"; the rest of its words may name a key.
  static std::string_view code_of(std::string_view page) {
    constexpr std::string_view kBegin = "<Code>", kEnd = "</Code>";
    const std::size_t begin = page.find(kBegin), end = page.find(kEnd);
    if (begin == page.npos || end == page.npos || end < begin) return "";
    const std::string_view code = page.substr(begin + kBegin.size(), end - begin - kBegin.size());
    return code.size() <= 40 && consists_of(code, "") ? code : "";
  }

  const Place place_;
  bool may_be_unchanged_ = false;
  List get_headers_, put_headers_;
  std::unique_ptr<CURL, FreeEasy> easy_;
};

bool is_empty_path(std::string_view path) { return path.empty() || path == "/"; }

// "/a/b" of "/a/b/".
std::string without_end(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// What a URL of http: or https: means; or nothing, and words behind "The URL ".
std::optional<Place> place_on_web(const Url& url, bool is_file, std::string_view query,
                                  std::string& mistake) {
  const auto wrong = [&](std::string_view words) {
    mistake = words;
    return std::nullopt;
  };
  if (!is_file && !query.empty()) return wrong("of a folder has a '?'");
  // curl would take "/../" off, and S3's signature is of what was sent.
  if (concat({url.path, "/"}).find("/../") != url.path.npos) return wrong("has '..' in its path");
  Place place;
  place.name = url.place();
  place.base = is_file ? concat({url.place(), url.path, query}) : url.place() + without_end(url.path);
  place.is_tls = url.scheme == "https";
  place.user = url.user;
  place.password = url.password.value_or("");
  return place;
}

std::optional<Place> place_on_s3(const Url& url, std::string& mistake) {
  const auto wrong = [&](std::string_view words) {
    mistake = words;
    return std::nullopt;
  };
  std::string region = environment("AWS_REGION"), endpoint = environment("AWS_ENDPOINT_URL");
  if (region.empty()) region = environment("AWS_DEFAULT_REGION");
  for (const auto& [name, value] : url.query) {
    if (name != "region" && name != "endpoint")
      return wrong("has something other than region= and endpoint= behind its '?'");
    (name == "region" ? region : endpoint) = value;
  }
  if (region.empty()) region = "us-east-1";
  if (!consists_of(region, "-")) return wrong("or AWS_REGION has a region that is none");
  if (endpoint.empty()) endpoint = concat({"https://s3.", region, ".amazonaws.com"});
  const std::optional<Url> server = parse_url(endpoint, mistake);
  if (!server || (server->scheme != "https" && server->scheme != "http") || server->password ||
      !server->user.empty() || !is_empty_path(server->path) || !server->query.empty())
    return wrong("or AWS_ENDPOINT_URL has an endpoint that is not http[s]://host[:port]");
  if (url.password || !url.user.empty() || url.port != 0 || url.host.find(':') != url.host.npos)
    return wrong(
        "has more than a bucket before its path; credentials come from AWS_ACCESS_KEY_ID and its likes");
  // A signature is of an encoded path, and encoders differ.
  if (!consists_of(url.path, "-._~/") || concat({url.path, "/"}).find("/../") != url.path.npos)
    return wrong("has a prefix with bytes other than letters, digits and -._~/");
  Place place;
  place.user = environment("AWS_ACCESS_KEY_ID");
  place.password = environment("AWS_SECRET_ACCESS_KEY");
  place.token = environment("AWS_SESSION_TOKEN");
  if (place.user.empty() || place.password.empty())
    return wrong("of a bucket needs credentials: AWS_ACCESS_KEY_ID or AWS_SECRET_ACCESS_KEY is not set");
  if (!std::all_of(place.token.begin(), place.token.end(), [](char c) { return c > ' ' && c < 127; }))
    return wrong("of a bucket needs credentials: AWS_SESSION_TOKEN has bytes that are not of a token");
  if (curl_version_info(CURLVERSION_NOW)->version_num < kSignsS3Since)
    return wrong("of a bucket needs libcurl 7.88 or newer");
  place.name = concat({"s3://", url.host, " at ", server->place()});
  place.base = concat({server->place(), "/", url.host, without_end(url.path)});
  place.is_tls = server->scheme == "https";
  place.signature = concat({"aws:amz:", region, ":s3"});
  return place;
}

// The session for this URL, of a folder; or, with a version, of a file that is wanted unless it has this
// version (empty: in any case). Or none, and `why` is written.
std::unique_ptr<Session> session_of(std::string_view text, const std::optional<std::string>& version,
                                    const Why& why) {
  const auto wrong = [&](std::string_view mistake) {
    why.failed({"The URL ", mistake});
    return nullptr;
  };
  std::string mistake;
  const std::optional<Url> url = parse_url(text, mistake);
  if (!url) return wrong(mistake);
  const bool is_web = url->scheme == "http" || url->scheme == "https";
  if (!is_web && url->scheme != "s3") return wrong("does not begin with http:, https: or s3:");
  std::call_once(curl_started, [] { curl_start = curl_global_init(CURL_GLOBAL_DEFAULT); });
  if (curl_start != CURLE_OK) {
    why.failed({"libcurl does not start: ", curl_easy_strerror(curl_start)});
    return nullptr;
  }
  const std::size_t mark = text.find('?');
  const std::string_view query = mark == text.npos ? "" : text.substr(mark);
  std::optional<Place> place =
      is_web ? place_on_web(*url, version.has_value(), query, mistake) : place_on_s3(*url, mistake);
  if (!place) return wrong(mistake);
  place->is_file = version.has_value();
  return std::make_unique<Session>(*std::move(place), version.value_or(""));
}

}  // namespace
}  // namespace normjit::plugins

extern "C" NORMJIT_API normjit_remote_outcome normjit_remote_open(const char* url, normjit_remote* remote,
                                                                  char* why_text, size_t why_size) {
  using namespace normjit::plugins;
  const Why why(why_text, why_size);
  return guarded(why, [&] { return hand_over(session_of(url, {}, why), remote, why); });
}

extern "C" NORMJIT_API normjit_remote_outcome
normjit_remote_fetch(const char* url, const char* version, std::size_t max_bytes, normjit_remote_sink sink,
                     void* to, char* new_version, std::size_t version_size, std::int32_t timeout_ms,
                     char* why_text, std::size_t why_size) {
  using namespace normjit::plugins;
  const Why why(why_text, why_size);
  return guarded(why, [&] {
    if (version_size > 0) new_version[0] = '\0';
    const std::unique_ptr<Session> session = session_of(url, version, why);
    if (session == nullptr) return Outcome{NORMJIT_REMOTE_FAILED};
    std::string etag;
    const Outcome outcome = session->fetch(max_bytes, sink, to, etag, timeout_ms, why);
    const bool fits = etag.size() < version_size &&
                      std::all_of(etag.begin(), etag.end(), [](char c) { return c >= ' ' && c < 127; });
    if (fits) std::memcpy(new_version, etag.c_str(), etag.size() + 1);
    return outcome;
  });
}
