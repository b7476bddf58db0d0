// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cache_scenes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "normjit/cache/file_names.h"
#include "normjit/cache/pack.h"
#include "normjit/cache/trim.h"

namespace normjit::testing {
namespace {

namespace fs = std::filesystem;
using Kind = RecordingFileSystem::Kind;

Entry entry_of(const std::string& identity) {
  return {
      .identity = identity, .facts = {{"plan", "p"}}, .body = "body of " + identity + std::string(300, 'x')};
}
const Entry kEntry = entry_of("a");

void write(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::map<std::string, std::string> content_of(const std::string& directory) {
  std::map<std::string, std::string> content;
  for (const auto& file : fs::directory_iterator(directory)) {
    std::ifstream stream(file.path(), std::ios::binary);
    content[file.path().filename()] = std::string(std::istreambuf_iterator<char>(stream), {});
  }
  return content;
}

std::string path_of(const std::string& directory, const std::string& identity) {
  return path_to(directory, entry_id(identity), kEntrySuffix);
}

Outcome get_new(CacheScene& scene) {
  Cache cache = scene.cache();
  return scene.get(cache, "a", false);
}

Outcome get_old(CacheScene& scene) {
  Cache cache = scene.cache();
  return scene.get(cache, "a", true);
}

Outcome find(CacheScene& scene) {
  Cache cache = scene.cache();
  return scene.find(cache, "a") ? Outcome::served : Outcome::missed;
}

Outcome store(CacheScene& scene) {
  Cache cache = scene.cache();
  const bool stored = cache.store(kEntry);
  EXPECT_TRUE(scene.find(cache, "a"));
  return stored ? Outcome::served : Outcome::refused;
}

Outcome replace(CacheScene& scene) {
  Cache cache = scene.cache();
  const bool stored = cache.store(kEntry, /*replace=*/true);
  const auto found = cache.find("a");
  EXPECT_TRUE(found && found->entry == kEntry) << "memory has the new one";
  return stored ? Outcome::served : Outcome::refused;
}

Outcome list(CacheScene& scene) {
  const auto listed = scene.cache().list();
  if (!listed) return Outcome::refused;
  std::size_t sound = 0;
  for (const Listed& each : *listed) {
    sound += each.entry.ok();
    if (each.entry) {
      EXPECT_EQ(*each.entry, entry_of(each.entry->identity));
    }
  }
  return sound == 6 ? Outcome::served : Outcome::missed;
}

Outcome look(CacheScene& scene) {
  const Cache::Look look = scene.cache().look("a");
  if (look.lookup.kind != Lookup::Kind::entry) return Outcome::missed;
  EXPECT_EQ(look.lookup.entry, kEntry);
  EXPECT_EQ(scene.files->writes(), 0);
  return Outcome::served;
}

Outcome prune(CacheScene& scene) {
  const auto trimmed = trim(*scene.files, scene.directory, {.all_damaged = true});
  if (!trimmed) {
    EXPECT_EQ(trimmed.code(), Code::CacheIo);
    return Outcome::refused;
  }
  EXPECT_EQ(trimmed->entries, 0);
  if (trimmed->busy || trimmed->refused > 0) return Outcome::refused;
  return trimmed->damaged == 2 && trimmed->temporaries == 2 ? Outcome::served : Outcome::missed;
}

void nothing(CacheScene&) {}
void empty_directory(CacheScene& scene) { fs::create_directory(scene.directory); }
void warm(CacheScene& scene) { scene.put("a"); }
void damaged(CacheScene& scene) { scene.put_damaged("a"); }
void slow(CacheScene& scene) { scene.files->limit_transfers(37); }
void layered(CacheScene& scene) {
  scene.put_in_layer("a");
  scene.layers = {scene.layer};
}
void packed(CacheScene& scene) {
  scene.put_in_pack("a");
  scene.layers = {scene.layer, scene.pack};
}

const Story kStories[] = {
    {"a store, no directory", nothing, store},
    {"a store", empty_directory, store},
    {"a new key, no directory", [](CacheScene& scene) { scene.directory += "/below/below"; }, get_new},
    {"a new key", empty_directory, get_new},
    {"a new key, piece by piece", slow, get_new},
    {"a new key where links are refused",
     [](CacheScene& scene) { scene.files->fail_always(Kind::link, EPERM); }, get_new},
    {"a new key where locks are refused",
     [](CacheScene& scene) { scene.files->fail_always(Kind::lock, ENOLCK); }, get_new},
    {"a warm find", warm, find},
    {"a warm find, piece by piece",
     [](CacheScene& scene) {
       warm(scene);
       slow(scene);
     },
     find},
    {"a known key", warm, get_old},
    {"a damaged entry", damaged,
     [](CacheScene& scene) {
       Cache cache = scene.cache();
       return scene.get(cache, "a", false);
     }},
    {"a replacement", [](CacheScene& scene) { scene.put_other_body("a"); }, replace},
    {"a find in a layer", layered, find},
    {"a find in a layer, to a damaged directory",
     [](CacheScene& scene) {
       damaged(scene);
       layered(scene);
     },
     find},
    {"a known key of a layer", layered, get_old},
    {"a find in a pack", packed, find},
    {"a find in a pack, piece by piece",
     [](CacheScene& scene) {
       packed(scene);
       slow(scene);
     },
     find},
    {"a known key of a pack", packed, get_old},
    {"a store that fills the directory",
     [](CacheScene& scene) {
       for (const char* identity : {"b", "c", "d", "e", "f", "g"}) scene.put(identity);
       scene.max_bytes = 2000;
     },
     store},
    {"a fill that fills the directory",
     [](CacheScene& scene) {
       for (const char* identity : {"b", "c", "d", "e", "f", "g"}) scene.put(identity);
       layered(scene);
       scene.max_bytes = 2000;
     },
     find},
    {"a prune",
     [](CacheScene& scene) {
       for (const char* identity : {"a", "b"}) scene.put(identity);
       const std::string old = scene.directory + "/";
       for (const std::string& name :
            {file_name(entry_id("c"), ".damaged"), file_name(entry_id("d"), ".damaged"),
             file_name(entry_id("e"), ".njk.0123456789abcdef.tmp"),
             file_name(entry_id("f"), ".njk.0123456789abcdef.tmp"), std::string("README")}) {
         write(old + name, "left");
         fs::last_write_time(old + name, fs::file_time_type::clock::now() - std::chrono::hours(1));
       }
     },
     prune},
    {"a list",
     [](CacheScene& scene) {
       for (const char* identity : {"a", "b", "c", "d"}) scene.put(identity);
       layered(scene);
       packed(scene);
     },
     list},
    {"a look",
     [](CacheScene& scene) {
       fs::create_directory(scene.directory);
       packed(scene);
     },
     look},
};

}  // namespace

std::span<const Story> stories() { return kStories; }

CacheScene::CacheScene(const Story& story) : story_(story) {
  files->skip_flushes();  // they take the time, and nobody cuts the power
  story.prepare(*this);
  if (!fs::exists(directory)) return;
  for (const auto& [name, bytes] : content_of(directory))
    if (name.ends_with(".tmp")) temporaries_.insert(name);
}

void CacheScene::put(const std::string& identity) {
  write(path_of(directory, identity), encode(entry_of(identity)));
  bodies_[identity].insert(entry_of(identity).body);
}

void CacheScene::put_damaged(const std::string& identity) {
  write(path_of(directory, identity), encode(entry_of(identity)).substr(0, 200));
  damaged_.insert(entry_id(identity));
}

void CacheScene::put_other_body(const std::string& identity) {
  Entry entry = entry_of(identity);
  entry.body = "older";
  write(path_of(directory, identity), encode(entry));
  bodies_[identity].insert(entry.body);
}

void CacheScene::put_in_layer(const std::string& identity) {
  write(path_of(layer, identity), encode(entry_of(identity)));
  layer_before_ = content_of(layer);
}

void CacheScene::put_in_pack(const std::string& identity) {
  write(pack, encode_pack({{entry_id(identity), encode(entry_of(identity))}}));
  packs_before_ = content_of(packs);
}

Cache CacheScene::cache() {
  return Cache({.directory = directory,
                .layers = layers,
                .max_bytes = max_bytes,
                .patience = std::chrono::milliseconds(0)},
               files, nullptr);
}

Outcome CacheScene::get(Cache& cache, const std::string& identity, bool was_there) {
  if (find(cache, identity)) return Outcome::served;
  const KeyLock alone = cache.lock(identity);
  if (find(cache, identity)) return Outcome::served;
  const bool stored = cache.store(entry_of(identity));
  EXPECT_TRUE(find(cache, identity)) << "memory has it";
  if (!stored) return Outcome::refused;
  return was_there ? Outcome::missed : Outcome::served;
}

bool CacheScene::find(Cache& cache, const std::string& identity) {
  const auto found = cache.find(identity);
  if (found) expect_right(found->entry);
  return found.has_value();
}

void CacheScene::check() {
  if (fs::exists(layer)) {
    EXPECT_EQ(content_of(layer), layer_before_);
  }
  if (fs::exists(packs)) {
    EXPECT_EQ(content_of(packs), packs_before_);
  }
  if (!killed) expect_no_temporaries();

  {
    Cache again = cache();
    get(again, "a", true);
  }
  Cache later = cache();
  EXPECT_TRUE(find(later, "a")) << "the directory is no good any more";
  const auto listed = later.directory().list();
  ASSERT_TRUE(listed.ok());
  for (const Listed& each : *listed) {
    if (each.entry) {
      expect_right(*each.entry);
    } else {
      EXPECT_TRUE(damaged_.contains(each.id)) << each.path;
      EXPECT_TRUE(later.directory().set_aside(each.id));
    }
  }
  EXPECT_TRUE(trim(*files, directory, {.stale_seconds = 0, .all_damaged = true}).ok());
  for (const auto& [name, bytes] : content_of(directory))
    EXPECT_TRUE(!id_in(name, ".njk").empty() || name == "lock" || name == "README") << name;
}

void CacheScene::expect_right(const Entry& entry) {
  if (bodies_[entry.identity].contains(entry.body)) return;
  EXPECT_EQ(entry, entry_of(entry.identity));
}

void CacheScene::expect_no_temporaries() {
  for (const auto& call : files->calls()) {
    const bool makes = call.kind == Kind::open && RecordingFileSystem::changes(call);
    if (call.error != 0 && (call.kind == Kind::unlink || makes)) return;
  }
  if (!fs::exists(directory)) return;
  for (const auto& file : fs::directory_iterator(directory))
    EXPECT_TRUE(temporaries_.contains(file.path().filename()) || file.path().extension() != ".tmp")
        << file.path();
}

}  // namespace normjit::testing
