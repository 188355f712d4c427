#include "storage/file/file_store.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/file_store_fixture.h"

namespace hitide {
namespace {

// ---- start and restart --------------------------------------------------------------------------

TEST_F(FileStoreTest, KeepsObjectsOverARestart) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(3);
  const StoreStats before = store_->stats();
  ASSERT_TRUE(store_->close(kNoDeadline).ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(held(count), count);
  EXPECT_EQ(store_->stats().objects, before.objects);
  // A file ends with its last byte, not with its last block.
  EXPECT_EQ(store_->stats().bytes_used, before.bytes_used);
  EXPECT_EQ(put(name(0), kSize), StatusCode::already_exists);
  ASSERT_TRUE(open().ok()) << "a second time";
  EXPECT_EQ(store_->stats().bytes_used, before.bytes_used);
}

TEST_F(FileStoreTest, RemovedObjectsStayRemovedOverARestart) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 5000), kOk);
  ASSERT_EQ(put("b", 5000), kOk);
  ASSERT_EQ(put("c", 5000), kOk);
  EXPECT_EQ(remove_object(*store_, "b"), kOk);
  EXPECT_EQ(check("b", 5000), kMiss);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("a", 5000), kOk);
  EXPECT_EQ(check("b", 5000), kMiss);
  EXPECT_EQ(check("c", 5000), kOk);
  EXPECT_EQ(put("b", 5000), kOk);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("b", 5000), kOk);
}

TEST_F(FileStoreTest, ShortRunsAppendToOneSegment) {
  for (int run = 0; run < 20; ++run) {
    ASSERT_TRUE(open().ok());
    EXPECT_EQ(put(name(run), 333), kOk);
  }
  EXPECT_EQ(list_segments(options_.path).size(), 1u);
  for (int run = 0; run < 20; ++run) EXPECT_EQ(check(name(run), 333), kOk);
}

TEST_F(FileStoreTest, TheDirectoryHasOneOwner) {
  ASSERT_TRUE(open().ok());
  const auto second = FileStore::open(options_);
  EXPECT_EQ(second.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(second.status().message().find(options_.path), std::string::npos);
  EXPECT_NE(second.status().message().find("process " + std::to_string(::getpid())),
            std::string::npos);
  ASSERT_TRUE(store_->close(kNoDeadline).ok());
  EXPECT_TRUE(FileStore::open(options_).ok()) << "close gives the directory back";
}

TEST_F(FileStoreTest, NewerAndForeignFormatsAreRefused) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  store_.reset();
  const std::string format = options_.path + "/FORMAT";
  for (const char* text : {"hitide-file-store 3\n", "hitide-file-store 1", "hitide-file-store \n",
                           "hitide-file-store 1x\n", "", "something else\n"}) {
    write_bytes(format, {text, text + std::strlen(text)});
    const Status status = open();
    EXPECT_EQ(status.code(), StatusCode::failed_precondition) << text;
    EXPECT_NE(status.message().find(options_.path), std::string::npos);
  }
  std::filesystem::remove(format);
  ASSERT_TRUE(open().ok()) << "FORMAT is written anew";
  EXPECT_EQ(check("a", 100), kOk);
}

TEST_F(FileStoreTest, UnusableDirectoriesAreSaid) {
  options_.path = "";
  EXPECT_EQ(open().code(), StatusCode::invalid_argument);
  options_.path = directory_ / "file";
  write_bytes(options_.path, {'x'});
  EXPECT_FALSE(open().ok());
  options_.path = "/proc/hitide";
  EXPECT_FALSE(open().ok());
  options_.path = directory_ / "store";
  options_.bytes_max = 1000;
  EXPECT_EQ(open().code(), StatusCode::invalid_argument);
}

TEST_F(FileStoreTest, K12_B161_BadFilesDoNotPreventOpeningAndCountOnce) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(3);
  const std::uint64_t used = store_->stats().bytes_used;
  store_.reset();
  const std::string folder = segments_directory(options_.path) + "/";
  write_bytes(folder + "000100.seg", {});
  write_bytes(folder + "000101.seg", std::vector<char>(10'000, 'r'));
  write_bytes(folder + "000102.seg", read_bytes(folder + "000001.seg"));  // another's header
  std::filesystem::create_directory(folder + "000103.seg");
  ASSERT_EQ(::mkfifo((folder + "000104.seg").c_str(), 0600), 0);
  write_bytes(folder + "7.seg", {'x'});
  write_bytes(folder + "notes.txt", {'x'});
  for (int scan = 0; scan < 3; ++scan) {
    ASSERT_TRUE(open().ok());
    EXPECT_EQ(held(count), count);
    EXPECT_EQ(store_->stats().objects, static_cast<std::uint64_t>(count));
    EXPECT_EQ(store_->stats().bytes_used,
              used + 10'000 + std::filesystem::file_size(folder + "000102.seg"))
        << "what cannot be read still takes space, once";
  }
  EXPECT_EQ(put("new", 100), kOk);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("new", 100), kOk);
  EXPECT_TRUE(std::filesystem::exists(folder + "7.seg")) << "not named like ours";
}

// ---- golden bytes -------------------------------------------------------------------------------

// tests/golden/file_store: what docs/formats/file_store.md says, written by a program of its own.
TEST_F(FileStoreTest, WritesTheGoldenBytes) {
  options_.unix_seconds = [] { return std::uint32_t{1'700'000'000}; };
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("first", 10), kOk);
  ASSERT_EQ(put("second/with a longer name", 5000), kOk);
  ASSERT_EQ(put("third", 1), kOk);
  ASSERT_EQ(remove_object(*store_, "first"), kOk);
  store_.reset();
  const auto golden = read_bytes(HITIDE_SOURCE_DIR "/tests/golden/file_store/000002.seg");
  EXPECT_TRUE(read_bytes(segment_path(options_.path, 1)) == golden);
  const auto format = read_bytes(options_.path + "/FORMAT");
  EXPECT_EQ(std::string(format.begin(), format.end()), "hitide-file-store 2\n");
}

// Of both versions of the format; the older one is raised, so that older programs keep away.
TEST_F(FileStoreTest, ReadsTheGoldenBytes) {
  for (const std::string version : {"1", "2"}) {
    options_.path = directory_ / ("format" + version);
    std::filesystem::create_directories(segments_directory(options_.path));
    std::filesystem::copy(HITIDE_SOURCE_DIR "/tests/golden/file_store/00000" + version + ".seg",
                          segment_path(options_.path, 1));
    const std::string format = "hitide-file-store " + version + "\n";
    write_bytes(options_.path + "/FORMAT", {format.begin(), format.end()});
    ASSERT_TRUE(open().ok());
    EXPECT_EQ(check("first", 10), kMiss) << "erased";
    EXPECT_EQ(check("second/with a longer name", 5000), kOk);
    EXPECT_EQ(check("third", 1), kOk);
    const auto raised = read_bytes(options_.path + "/FORMAT");
    EXPECT_EQ(std::string(raised.begin(), raised.end()), "hitide-file-store 2\n");
  }
}

// ---- damage -------------------------------------------------------------------------------------

class DamageTest : public FileStoreTest {
 protected:
  DamageTest() {
    files_.skip_syncs = true;  // the power stays on
    EXPECT_TRUE(open().ok());
    EXPECT_EQ(put("first", 100), kOk);
    EXPECT_EQ(put("second", 5000), kOk);
    EXPECT_EQ(put("last", 300), kOk);
    store_.reset();
    path_ = segment_path(options_.path, 1);
    whole_ = read_bytes(path_);
    index_ = read_bytes(segments_directory(options_.path) + "/000001.idx");
    EXPECT_FALSE(index_.empty()) << "written at close";
  }
  // Opens the store over these bytes; every object must be right or a miss. Returns how many are
  // right.
  // With the checkpoint of the undamaged segment, or without one.
  int survivors(const std::vector<char>& bytes, bool checkpoint = false) {
    write_bytes(path_, bytes);
    const std::string index = segments_directory(options_.path) + "/000001.idx";
    std::filesystem::remove(index);
    if (checkpoint) write_bytes(index, index_);
    EXPECT_TRUE(open().ok());
    int right = 0;
    for (const auto& [key, size] : {std::pair{"first", 100}, {"second", 5000}, {"last", 300}}) {
      const StatusCode code = check(key, static_cast<std::size_t>(size));
      EXPECT_TRUE(code == kOk || code == kMiss || code == StatusCode::data_loss)
          << key << ": " << to_string(code);
      if (code == kOk) ++right;
      // The second question: what was found damaged has been dropped.
      if (code != kOk) {
        EXPECT_EQ(check(key, static_cast<std::size_t>(size)), kMiss);
      }
    }
    store_.reset();
    return right;
  }
  std::string path_;
  std::vector<char> whole_;
  std::vector<char> index_;  // its checkpoint
};

TEST_F(DamageTest, TornTailsLoseTheLastRecordOnly) {
  ASSERT_EQ(survivors(whole_), 3);
  const std::size_t last = whole_.size() - 300 - kBlockBytes;
  for (std::size_t size = whole_.size() - 1; size >= last; --size) {
    // Each byte of the payload, of the header's fields, and of the block's edges.
    const std::size_t in_record = size - last;
    if (in_record > 400 && in_record < kBlockBytes - 50 && in_record % 97 != 0) continue;
    ASSERT_EQ(survivors({whole_.begin(), whole_.begin() + static_cast<std::ptrdiff_t>(size)}), 2)
        << size;
  }
}

TEST_F(DamageTest, NoTruncationGivesWrongBytes) {
  for (std::size_t size = 0; size < whole_.size(); size += 61) {
    survivors({whole_.begin(), whole_.begin() + static_cast<std::ptrdiff_t>(size)}, size % 2 == 0);
  }
}

// A checkpoint is believed wholly or not at all; without one the headers tell.
TEST_F(DamageTest, DamagedCheckpointsCostNothing) {
  const std::vector<char> good = index_;
  for (std::size_t at = 0; at < good.size(); ++at) {
    index_ = good;
    index_[at] = static_cast<char>(index_[at] ^ (1 << (at % 8)));
    ASSERT_EQ(survivors(whole_, true), 3) << at;
  }
  for (std::size_t size = 0; size < good.size(); size += 7) {
    index_.assign(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_EQ(survivors(whole_, true), 3) << size;
  }
}

TEST_F(DamageTest, NoFlippedBitGivesWrongBytes) {
  for (std::size_t at = 0; at < whole_.size(); ++at) {
    const std::size_t in_block = at % kBlockBytes;
    const bool padding = whole_[at] == 0 && in_block > 400;
    if (padding && in_block % 211 != 0) continue;
    auto damaged = whole_;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    const int right = survivors(damaged);
    ASSERT_GE(right, at < kBlockBytes ? 0 : 2) << "one bit damages one record, at " << at;
    if (at % 5 != 0) continue;
    const int told = survivors(damaged, true);
    ASSERT_GE(told, at < kBlockBytes ? 0 : 2) << "a checkpoint makes no difference, at " << at;
  }
}

TEST_F(DamageTest, ADamagedHeaderDoesNotHideWhatFollows) {
  auto damaged = whole_;
  std::fill_n(damaged.begin() + 2 * kBlockBytes + kBlockBytes, kBlockBytes, '\0');
  EXPECT_EQ(survivors(damaged), 2);
}

// A stored payload that looks like a record must not be taken for one.
TEST_F(FileStoreTest, RecordsInsideAPayloadAreNotFound) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("inner", 2000), kOk);
  store_.reset();
  const auto copy = read_bytes(segment_path(options_.path, 1));
  std::filesystem::remove_all(options_.path);
  options_.seed = 2;
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put_object(*store_, "outer", std::as_bytes(std::span(copy))), kOk);
  store_.reset();
  // Its own header is damaged, so that the scan walks through the payload.
  auto damaged = read_bytes(segment_path(options_.path, 1));
  damaged[kBlockBytes] = 'x';
  write_bytes(segment_path(options_.path, 1), damaged);
  std::filesystem::remove(segments_directory(options_.path) + "/000001.idx");
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(store_->stats().objects, 0u);
}

TEST_F(FileStoreTest, FilesDeletedWhileServingCostHitsOnly) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(3);
  std::filesystem::remove_all(segments_directory(options_.path));
  held(count);  // right bytes or misses
  put("afterwards", 100);
  ASSERT_TRUE(store_->close(kNoDeadline).ok() || files_.syncs > 0);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(held(count), 0);
  EXPECT_EQ(put("again", 100), kOk);
}

TEST_F(FileStoreTest, ADeletedActiveSegmentIsNoticed) {
  options_.sync_interval_ms = 1;
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  std::filesystem::remove(segment_path(options_.path, 1));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int n = 0;
  while (list_segments(options_.path).empty() && std::chrono::steady_clock::now() < deadline) {
    put(name(n++), 100);
    std::this_thread::yield();
  }
  ASSERT_FALSE(list_segments(options_.path).empty()) << "a new segment has begun";
  ASSERT_EQ(put("b", 100), kOk);
  options_.sync_interval_ms = 0;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("b", 100), kOk);
}

TEST_F(FileStoreTest, FilesTruncatedWhileServingAreMisses) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 5000), kOk);
  ASSERT_EQ(put("b", 5000), kOk);
  std::filesystem::resize_file(segment_path(options_.path, 1), 3 * kBlockBytes);
  EXPECT_EQ(check("a", 5000), StatusCode::data_loss);
  EXPECT_EQ(check("b", 5000), StatusCode::data_loss);
  EXPECT_EQ(check("b", 5000), kMiss);
  EXPECT_EQ(exists_object(*store_, "b"), kMiss);
  EXPECT_EQ(put("b", 5000), kOk) << "it can be stored anew";
  EXPECT_EQ(check("b", 5000), kOk);
}

// ---- failing disks ------------------------------------------------------------------------------

TEST_F(FileStoreTest, ShortReadsAndWritesAreCompleted) {
  files_.short_transfers = true;
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 700), kOk);
  EXPECT_EQ(check("a", 700), kOk);
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("a", 700), kOk);
}

TEST_F(FileStoreTest, ReadErrorsAreNotForgotten) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 700), kOk);
  files_.read_error = EIO;
  EXPECT_EQ(check("a", 700), StatusCode::unavailable);
  EXPECT_EQ(store_->stats().failures, 1u);
  files_.read_error = 0;
  EXPECT_EQ(check("a", 700), kOk) << "the object was not dropped";
}

TEST_F(FileStoreTest, FailedWritesAreInvisibleAndTheStoreGoesOn) {
  for (const bool partial : {false, true}) {
    for (const int passing : {0, 1}) {  // the payload fails; the header fails
      files_.partial_writes = partial;
      ASSERT_TRUE(open().ok());
      const std::string tag = std::to_string(partial) + std::to_string(passing);
      ASSERT_EQ(put("before" + tag, 3000), kOk);
      files_.write_error = EIO;
      files_.write_skip = passing;
      files_.write_errors = 1;
      EXPECT_EQ(put("bad" + tag, 3000), StatusCode::unavailable);
      EXPECT_EQ(check("bad" + tag, 3000), kMiss);
      EXPECT_EQ(put("after" + tag, 500), kOk);
      ASSERT_TRUE(open().ok());
      EXPECT_EQ(check("before" + tag, 3000), kOk);
      EXPECT_EQ(check("bad" + tag, 3000), kMiss);
      EXPECT_EQ(check("after" + tag, 500), kOk);
      EXPECT_EQ(put("bad" + tag, 3000), kOk);
    }
  }
}

TEST_F(FileStoreTest, TooManyOpenFilesCostNothingStored) {
  ASSERT_TRUE(open().ok());
  const int count = fill_segments(2);
  files_.open_error = EMFILE;
  int failed = 0;
  for (int n = count; n < count + 12; ++n) {
    const StatusCode code = put(name(n), kSize);
    EXPECT_TRUE(code == kOk || code == StatusCode::unavailable) << to_string(code);
    if (code != kOk) ++failed;
  }
  EXPECT_GT(failed, 0);
  EXPECT_GE(held(count), count);
  files_.open_error = 0;
  EXPECT_EQ(put("again", kSize), kOk);
}

TEST_F(FileStoreTest, DescriptorsDoNotLeak) {
  ASSERT_TRUE(open().ok());
  fill_segments(2);
  const auto count_open = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = count_open();
  for (int round = 0; round < 200; ++round) {
    held(5);
    files_.write_error = EIO;
    files_.write_errors = 1;
    put("failing", 3000);
    put(name(1000 + round), 10);
    remove_object(*store_, name(1000 + round));
  }
  EXPECT_LE(count_open(), before + 2) << "at most a new segment or two";
}

TEST_F(FileStoreTest, SyncFailuresAreCountedAndSaid) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  files_.sync_error = EIO;
  EXPECT_EQ(store_->close(kNoDeadline).code(), StatusCode::unavailable);
  EXPECT_EQ(store_->stats().failures, 1u);
  files_.sync_error = 0;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("a", 100), kOk);
}

TEST_F(FileStoreTest, WritesAreSyncedInTheBackground) {
  options_.sync_interval_ms = 1;
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (files_.syncs < 2 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GE(files_.syncs, 2) << "the segment and its directory";
  options_.sync_interval_ms = 0;
}

// ---- limits and eviction ------------------------------------------------------------------------

TEST_F(FileStoreTest, EvictsTheOldestAndStaysWithinTheLimit) {
  options_.bytes_max = 8u << 20;
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 300; ++n) {
    ASSERT_EQ(put(name(n), kSize), kOk);
    ASSERT_LE(store_->stats().bytes_used, options_.bytes_max);
  }
  std::uint64_t on_disk = 0;
  for (const auto& segment : list_segments(options_.path)) on_disk += segment.bytes;
  EXPECT_LE(on_disk, options_.bytes_max);
  EXPECT_EQ(check(name(0), kSize), kMiss);
  EXPECT_EQ(check(name(299), kSize), kOk);
  const int kept = held(300);
  EXPECT_GE(kept, 60);
  for (int n = 300 - kept; n < 300; ++n) EXPECT_EQ(check(name(n), kSize), kOk) << n;
  EXPECT_EQ(store_->stats().evicted_objects, static_cast<std::uint64_t>(300 - kept));
}

TEST_F(FileStoreTest, K12_B157_FilesOfEarlierRunsCountInTheLimit) {
  options_.bytes_max = 16u << 20;
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 100; ++n) ASSERT_EQ(put(name(n), kSize), kOk);
  options_.bytes_max = 5u << 20;
  ASSERT_TRUE(open().ok());
  EXPECT_LE(store_->stats().bytes_used, options_.bytes_max);
  EXPECT_EQ(check(name(99), kSize), kOk);
  EXPECT_GT(held(100), 20);
}

TEST_F(FileStoreTest, K12_B153_ASegmentThatCannotBeDeletedDoesNotStopEviction) {
  options_.bytes_max = 8u << 20;
  files_.unremovable = "000001.seg";
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 200; ++n) ASSERT_EQ(put(name(n), kSize), kOk);
  EXPECT_LE(store_->stats().bytes_used, options_.bytes_max);
  EXPECT_EQ(check(name(0), kSize), kOk) << "still served";
  EXPECT_EQ(check(name(199), kSize), kOk);
}

TEST_F(FileStoreTest, K12_B153_WhenNothingCanBeDeletedPutsAreRefusedWithoutSpinning) {
  options_.bytes_max = 8u << 20;
  files_.unremovable = ".seg";
  ASSERT_TRUE(open().ok());
  int n = 0;
  while (put(name(n), kSize) == kOk) ++n;
  EXPECT_EQ(put("more", kSize), StatusCode::resource_exhausted);
  const int tried = files_.unlinks;
  for (int again = 0; again < 50; ++again) {
    EXPECT_EQ(put("more", kSize), StatusCode::resource_exhausted);
  }
  EXPECT_EQ(files_.unlinks, tried) << "not tried again at once";
  EXPECT_EQ(held(n), n);
}

// ---- space ahead of the writes ------------------------------------------------------------------

TEST_F(FileStoreTest, SpaceIsAskedForInLargePieces) {
  options_.segment_bytes = 8u << 20;
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 70; ++n) ASSERT_EQ(put(name(n), kSize), kOk);
  EXPECT_EQ(files_.allocations, 2) << "7 MiB";
  struct stat info {};
  ASSERT_EQ(::stat(segment_path(options_.path, 1).c_str(), &info), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(info.st_size), store_->stats().bytes_used) << "not its size";
  EXPECT_LE(static_cast<std::uint64_t>(info.st_blocks) * 512, options_.segment_bytes + 65536)
      << "no more than the segment may hold";
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(held(70), 70);
}

TEST_F(FileStoreTest, FileSystemsThatCannotReserveSpaceAreAskedOnce) {
  for (const int error : {EOPNOTSUPP, ENOSPC}) {
    options_.path = directory_ / ("store" + std::to_string(error));
    files_.allocate_error = error;
    files_.allocations = 0;
    ASSERT_TRUE(open().ok());
    for (int n = 0; n < 8; ++n) ASSERT_EQ(put(name(n), kSize), kOk);
    EXPECT_EQ(files_.allocations, 1);
    EXPECT_EQ(held(8), 8);
  }
}

// ---- threads ------------------------------------------------------------------------------------

// Writers fill a small store round and round while readers read what may be evicted under them.
TEST_F(FileStoreTest, ReadersWritersAndEvictionDoNotDisturbEachOther) {
  options_.bytes_max = 4u << 20;
  options_.segment_bytes = 1u << 18;
  options_.sync_interval_ms = 1;
  ASSERT_TRUE(open().ok());
  std::atomic<int> wrong = 0;
  std::atomic<int> hits = 0;
  std::atomic<int> newest = 0;
  std::atomic<int> writing = 2;
  const auto size_of = [](int n) { return 20'000 + static_cast<std::size_t>(n % 7) * 1111; };
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int n = t; n < 600; n += 2) {
        const StatusCode code = put(name(n), size_of(n));
        if (code != kOk) ++wrong;
        newest = n;
        if (n % 10 == 0 && remove_object(*store_, name(n)) != kOk) ++wrong;
      }
      --writing;
    });
  }
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; writing > 0 || round < 180; ++round) {
        const int n = std::max(0, newest - (round * (t + 3)) % 180);
        const StatusCode code = check(name(n), size_of(n));
        if (code == kOk) ++hits;
        if (code != kOk && code != kMiss) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
  EXPECT_LE(store_->stats().bytes_used, options_.bytes_max);
  options_.sync_interval_ms = 0;
  ASSERT_TRUE(open().ok());
  for (int n = 0; n < 600; ++n) {
    const StatusCode code = check(name(n), size_of(n));
    EXPECT_TRUE(code == kOk || code == kMiss);
  }
}

}  // namespace
}  // namespace hitide
