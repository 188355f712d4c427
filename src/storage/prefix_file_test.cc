// Export and import over the pools of synthetic models, and files that are not what they should be.
#include "storage/prefix_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include <gtest/gtest.h>

#include <hitide/file_store.h>

#include "base/log.h"
#include "base/random.h"
#include "storage/marker.h"
#include "storage/memory/memory_store.h"
#include "storage/page_store.h"
#include "storage/stored_bytes.h"
#include "tests/support/synthetic_pages.h"
#include "tests/support/temp_directory.h"

namespace hitide {
namespace {

constexpr std::uint32_t kWindow = 2;
constexpr std::size_t kHeadBytes = 64;

ModelSpec synthetic_model(bool logical) {
  ModelSpec model;
  model.model_name = "synthetic";
  model.weights_digest = "abc";
  model.numerics = {"engine=none", "exact"};
  model.pools = {synthetic_pool("kv", logical ? 0 : 40, ""), synthetic_pool("c4", 30, "kv"),
                 synthetic_pool("swa", 20, "kv"), synthetic_pool("draft", 10, "kv")};
  model.pools[2].hit_policy = {HitPolicy::Kind::trailing_pages, kWindow};
  model.pools[3].required = false;
  return model;
}

std::vector<PageKey> keys_of(int count) {
  std::vector<PageKey> keys;
  for (int page = 0; page < count; ++page) keys.push_back(synthetic_key(page));
  return keys;
}

void fill(ObjectStore& store, const ModelSpec& model, int count) {
  PageStore pages(store, model);
  const int window = std::min<int>(count, kWindow);
  std::vector<PagePart> parts;
  parts.push_back(synthetic_part(model.pools[0], 0, count));
  parts.push_back(synthetic_part(model.pools[1], 0, count));
  parts.push_back(synthetic_part(model.pools[2], count - window, window));
  parts.push_back(synthetic_part(model.pools[3], 0, count - 1));
  EXPECT_TRUE(pages.store(views_of(parts), {}).status.ok());
}

std::uint32_t restorable(ObjectStore& store, const ModelSpec& model, int count) {
  PageStore pages(store, model);
  PrefixStops stops;
  EXPECT_TRUE(pages.exists_prefix(keys_of(count), stops, {}).status.ok());
  return stops.longest();
}

std::vector<std::byte> bytes_at(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void write_bytes(const std::string& path, std::span<const std::byte> bytes) {
  // A new one is cheaper than one that is cut to nothing, which some file systems sync.
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

// As import_prefix(), into a store of the caller's.
Status import_at(const std::string& path, ObjectStore& store) {
  HITIDE_ASSIGN_OR_RETURN(PrefixFileReader file, PrefixFileReader::open(path));
  HITIDE_RETURN_IF_ERROR(verify_prefix(file));
  return import_into(store, file).status();
}

// A file whose bytes never change: fixed backup ids.
void write_known_file(const std::string& path, const ModelSpec& model, int count) {
  auto file = PrefixFileWriter::create(path, model, keys_of(count));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const Digest identity = identity_digest(model);
  for (int page = 0; page < count; ++page) {
    for (std::uint32_t pool = 0; pool < model.pools.size(); ++pool) {
      if (pool == 2 && page < count - static_cast<int>(kWindow)) continue;
      const PoolSpec& spec = model.pools[pool];
      std::vector<std::byte> object(stored_object_bytes(model, pool));
      const PageKey key = synthetic_key(page);
      const EnvelopeExpectation expected{.identity = identity,
                                         .key = key,
                                         .pool = spec.name,
                                         .part = {},
                                         .payload_bytes = spec.page_bytes};
      if (has_bytes(spec)) {
        const auto payload = synthetic_payload(spec, page);
        std::copy(payload.begin(), payload.end(), object.begin() + kEnvelopeBytes);
        seal_envelope(expected, 7, object);
      } else {
        write_marker(expected, object);
      }
      ASSERT_TRUE(file->add(static_cast<std::uint32_t>(page), pool, object).ok());
    }
  }
  ASSERT_TRUE(file->finish().ok());
}

// Makes the checksums right again, as somebody would who wants to be believed.
void sum_again(std::vector<std::byte>& bytes) {
  const auto model_bytes = take<std::uint64_t>(bytes, 16);
  const auto pages = take<std::uint64_t>(bytes, 24);
  if (model_bytes < bytes.size() && pages < bytes.size() / 32) {
    const std::uint64_t sum_at = kHeadBytes + model_bytes + pages * 32;
    if (sum_at + 8 <= bytes.size()) {
      put(std::span(bytes), sum_at, checksum64(std::span(bytes).first(sum_at)));
    }
  }
  put(std::span(bytes), bytes.size() - 8, checksum64(std::span(bytes).first(bytes.size() - 8)));
}

class PrefixFile : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { set_log_sink({}); }
  const ModelSpec model_ = synthetic_model(GetParam());
  const TempDirectory directory_;
  const std::string path_ = directory_ / "prefix";
  MemoryStore from_{16u << 20};
  MemoryStore into_{16u << 20};
};

INSTANTIATE_TEST_SUITE_P(Anchors, PrefixFile, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "logical" : "physical"; });

TEST_P(PrefixFile, CarriesAllPoolsToAnotherStore) {
  fill(from_, model_, 40);
  const auto exported = export_from(from_, model_, keys_of(44), path_);
  ASSERT_TRUE(exported.ok()) << exported.status().to_string();
  EXPECT_EQ(exported->pages, 40u);
  EXPECT_EQ(exported->objects, 40u + 40u + kWindow + 39u);
  EXPECT_EQ(exported->file_bytes, std::filesystem::file_size(path_));

  auto file = PrefixFileReader::open(path_);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_TRUE(verify_prefix(*file).ok());
  EXPECT_EQ(file->head().keys, keys_of(40));
  EXPECT_EQ(file->head().identity, identity_digest(model_));
  EXPECT_EQ(file->head().model.numerics, model_.numerics);
  const auto imported = import_into(into_, *file);
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  EXPECT_EQ(imported->objects_written, exported->objects);
  EXPECT_EQ(imported->objects_present, 0u);
  EXPECT_EQ(restorable(into_, model_, 44), 40u);

  PageStore pages(into_, model_);
  std::vector<PagePart> parts;
  parts.push_back(synthetic_part(model_.pools[1], 0, 40, false));
  parts.push_back(synthetic_part(model_.pools[2], 38, 2, false));
  parts.push_back(synthetic_part(model_.pools[3], 0, 39, false));
  ASSERT_TRUE(pages.load(views_of(parts), {}).status.ok());
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t i = 0; i < parts[part].codes.size(); ++i) {
      ASSERT_EQ(parts[part].codes[i], StatusCode::ok);
      const int page = static_cast<int>(i) + (part == 1 ? 38 : 0);
      EXPECT_TRUE(holds_page(parts[part], model_.pools[part + 1], page, i));
    }
  }

  const auto again = import_into(into_, *file);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->objects_written, 0u);
  EXPECT_EQ(again->objects_present, exported->objects);
}

TEST_P(PrefixFile, EveryFlippedByteAndEveryTruncationIsAnErrorAndImportsNothing) {
  write_known_file(path_, model_, 3);
  const auto good = bytes_at(path_);
  ASSERT_TRUE(import_at(path_, from_).ok());
  const std::uint64_t objects = from_.stats().objects;
  ASSERT_GT(objects, 0u);
  const auto refused = [&](std::span<const std::byte> bytes, const std::string& what) {
    write_bytes(path_, bytes);
    const Status status = import_at(path_, into_);
    ASSERT_FALSE(status.ok()) << what;
    ASSERT_NE(status.message().find(path_), std::string::npos) << what;
    ASSERT_EQ(into_.stats().objects, 0u) << what;
  };
  for (std::size_t at = 0; at < good.size(); ++at) {
    auto bytes = good;
    for (const int bit : {0, 7}) {
      bytes[at] = good[at] ^ static_cast<std::byte>(1 << bit);
      refused(bytes, "bit " + std::to_string(bit) + " of byte " + std::to_string(at));
    }
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    refused(std::span(good).first(size), "cut to " + std::to_string(size));
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  refused(longer, "one byte more");
  longer.insert(longer.end(), good.begin(), good.end());
  refused(longer, "twice");
}

// Whatever the checksums are made to say: no crash, no wild allocation, and nothing gets into the
// store that is not the page which its key names.
TEST_P(PrefixFile, FilesThatWantToBeBelievedAreCheckedAllTheSame) {
  write_known_file(path_, model_, 3);
  const auto good = bytes_at(path_);
  const std::uint64_t seed = 20261;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 6000; ++round) {
    auto bytes = good;
    const std::uint64_t changes = 1 + random.next() % 3;
    for (std::uint64_t i = 0; i < changes; ++i) {
      // Half of them in the head, where the numbers are.
      const std::size_t range = random.next() % 2 == 0 ? kHeadBytes : bytes.size();
      bytes[random.next() % range] = static_cast<std::byte>(random.next());
    }
    if (random.next() % 4 == 0) bytes.resize(kHeadBytes + random.next() % bytes.size());
    sum_again(bytes);
    write_bytes(path_, bytes);
    MemoryStore into(16u << 20);
    if (import_at(path_, into).ok()) {
      // Only fields that pin nothing may differ: a name, or which pools are optional.
      EXPECT_EQ(restorable(into, model_, 3), 3u) << round;
    } else {
      EXPECT_EQ(into.stats().objects, 0u) << round;
    }
  }
}

TEST_P(PrefixFile, SaysWhatIsWrongWithAFileThatItsChecksumsVouchFor) {
  write_known_file(path_, model_, 3);
  const auto good = bytes_at(path_);
  const auto model_bytes = take<std::uint64_t>(good, 16);
  const std::size_t records_at = kHeadBytes + model_bytes + 3 * 32 + 8;
  const auto change = [&](const std::string& part,
                          const std::function<void(std::vector<std::byte>&)>& how) {
    auto bytes = good;
    how(bytes);
    sum_again(bytes);
    write_bytes(path_, bytes);
    const Status status = import_at(path_, into_);
    EXPECT_EQ(status.code(), StatusCode::data_loss) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_EQ(into_.stats().objects, 0u);
  };
  const auto set = [](std::size_t at, auto value) {
    return [at, value](std::vector<std::byte>& bytes) { put(std::span(bytes), at, value); };
  };
  change("0 pages", set(24, std::uint64_t{0}));
  change("pages", set(24, ~std::uint64_t{0}));
  change("before its head", set(24, std::uint64_t{1} << 29));
  change("bytes of description", set(16, std::uint64_t{1} << 40));
  change("must be zero", set(10, std::uint8_t{1}));
  change("not that of the model", set(32, std::uint8_t{0xff}));
  change("no JSON", set(kHeadBytes, 'x'));
  change("page 9", set(records_at, std::uint32_t{9}));
  change("pool 4", set(records_at + 4, std::uint32_t{4}));
  change("out of order", [&](std::vector<std::byte>& bytes) {
    const std::size_t first = 16 + stored_object_bytes(model_, 0);
    put(std::span(bytes), records_at + first, std::uint32_t{0});
    put(std::span(bytes), records_at + first + 4, std::uint32_t{0});
  });
  change("are stored", set(records_at + 8, ~std::uint64_t{0}));
  change("another prefix", set(kHeadBytes + model_bytes, std::uint8_t{0x77}));
  change("that its prefix needs", [&](std::vector<std::byte>& bytes) {
    // The first object goes.
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(records_at);
    const auto gone = static_cast<std::ptrdiff_t>(16 + stored_object_bytes(model_, 0));
    bytes.erase(from, from + gone);
    const std::size_t end = bytes.size() - 32;
    put(std::span(bytes), end + 8, take<std::uint64_t>(bytes, end + 8) - 1);
    put(std::span(bytes), end + 16, std::uint64_t{bytes.size()});
  });
  change("it says that it has", [&](std::vector<std::byte>& bytes) {
    put(std::span(bytes), bytes.size() - 24, std::uint64_t{1});
  });
}

TEST_P(PrefixFile, ANewerVersionAndAnotherKindOfFileAreNamed) {
  write_known_file(path_, model_, 1);
  auto bytes = bytes_at(path_);
  put(std::span(bytes), 8, std::uint16_t{2});
  sum_again(bytes);
  write_bytes(path_, bytes);
  EXPECT_EQ(import_at(path_, into_).code(), StatusCode::failed_precondition);
  write_bytes(path_, std::as_bytes(std::span("{\"this is\": \"no prefix\"}")));
  EXPECT_EQ(import_at(path_, into_).code(), StatusCode::invalid_argument);
  EXPECT_EQ(import_at(directory_.path(), into_).code(), StatusCode::invalid_argument);
  EXPECT_EQ(import_at(directory_ / "none", into_).code(), StatusCode::not_found);
  EXPECT_EQ(into_.stats().objects, 0u);
}

TEST_P(PrefixFile, BytesAreTheGoldenOnes) {
  write_known_file(path_, model_, 3);
  const std::string golden = std::string(HITIDE_SOURCE_DIR "/tests/golden/export/") +
                             (GetParam() ? "logical" : "physical") + ".htprefix";
  EXPECT_TRUE(bytes_at(path_) == bytes_at(golden)) << golden << " against " << path_;
  EXPECT_TRUE(import_at(golden, into_).ok());
  EXPECT_EQ(restorable(into_, model_, 3), 3u);
}

TEST_P(PrefixFile, AStoreWithoutTheFirstPageAndAShortPromptAreNoExport) {
  EXPECT_EQ(export_from(from_, model_, keys_of(3), path_).status().code(), StatusCode::not_found);
  fill(from_, model_, 3);
  EXPECT_EQ(export_from(from_, model_, {}, path_).status().code(), StatusCode::invalid_argument);
  ModelSpec other = model_;
  other.numerics.push_back("kv_type=f16");
  EXPECT_EQ(export_from(from_, other, keys_of(3), path_).status().code(), StatusCode::not_found);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_P(PrefixFile, APageThatIsDamagedInTheStoreLeavesNoFile) {
  fill(from_, model_, 3);
  const KeySchema schema(identity_digest(model_), {});
  const std::string key = schema.object_key(synthetic_key(1), "c4");
  ASSERT_EQ(remove_object(from_, key), StatusCode::ok);
  ASSERT_EQ(put_object(from_, key, bytes_of("damage", 158)), StatusCode::ok);
  const auto exported = export_from(from_, model_, keys_of(3), path_);
  EXPECT_EQ(exported.status().code(), StatusCode::data_loss) << exported.status().to_string();
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_P(PrefixFile, AFileIsThereWhenItIsWholeAndNotBefore) {
  fill(from_, model_, 3);
  {
    auto unfinished = PrefixFileWriter::create(path_, model_, keys_of(3));
    ASSERT_TRUE(unfinished.ok());
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  write_bytes(path_, std::as_bytes(std::span("old")));
  ASSERT_TRUE(export_from(from_, model_, keys_of(3), path_).ok());
  EXPECT_TRUE(import_at(path_, into_).ok()) << "takes the place of another file";

  const auto full = export_from(from_, model_, keys_of(3), "/dev/full");
  EXPECT_EQ(full.status().code(), StatusCode::resource_exhausted) << full.status().to_string();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_FALSE(export_from(from_, model_, keys_of(3), directory_.path()).ok());
  EXPECT_FALSE(export_from(from_, model_, keys_of(3), directory_ / "no/such/folder").ok());
}

// Through the public functions, from one directory to another.
TEST_P(PrefixFile, FromFileStoreToFileStore) {
  StorageOptions storage;
  storage.backend = "file";
  storage.path = directory_ / "first";
  storage.bytes_max = 8u << 20;
  write_known_file(path_, model_, 5);
  const auto first = import_prefix(path_, storage);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(first->pages, 5u);
  const std::string copy = directory_ / "copy";
  ASSERT_TRUE(export_prefix(storage, model_, keys_of(5), copy).ok());

  StorageOptions second = storage;
  second.path = directory_ / "second";
  const auto imported = import_prefix(copy, second);
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  EXPECT_EQ(imported->objects_written, first->objects_written);
  const auto contents = inspect_file_store(second.path);
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(contents->objects, first->objects_written);
  ASSERT_EQ(contents->namespaces.size(), 1u);
  EXPECT_EQ(contents->namespaces[0].name, identity_digest(model_).to_hex());

  StorageOptions absent = storage;
  absent.path = directory_ / "absent";
  EXPECT_EQ(export_prefix(absent, model_, keys_of(5), copy).status().code(), StatusCode::not_found);
  auto bytes = bytes_at(path_);
  bytes[bytes.size() / 2] ^= std::byte{1};
  write_bytes(path_, bytes);
  EXPECT_EQ(import_prefix(path_, absent).status().code(), StatusCode::data_loss);
  EXPECT_FALSE(std::filesystem::exists(absent.path)) << "no store is made for a damaged file";
  absent.backend = "memory";
  EXPECT_EQ(import_prefix(copy, absent).status().code(), StatusCode::invalid_argument);
}

TEST(PrefixFileLimit, AStoreThatIsTooSmallSaysSo) {
  set_log_sink([](LogLevel, std::string_view) {});
  ModelSpec model = synthetic_model(false);
  for (PoolSpec& pool : model.pools) pool.page_bytes *= 10000;
  const TempDirectory directory;
  const std::string path = directory / "prefix";
  MemoryStore from(256u << 20);
  fill(from, model, 60);
  ASSERT_TRUE(export_from(from, model, keys_of(60), path).ok());
  StorageOptions storage;
  storage.path = directory / "store";
  storage.bytes_max = 8u << 20;
  const auto imported = import_prefix(path, storage);
  set_log_sink({});
  EXPECT_EQ(imported.status().code(), StatusCode::resource_exhausted)
      << imported.status().to_string();
}

}  // namespace
}  // namespace hitide
