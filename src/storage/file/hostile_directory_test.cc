// Directories as other people leave them: things of other kinds in the store's places, files that
// went missing or were cut, and a directory that was taken away from a store that is in use.
#include <cstring>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "storage/file/file_store_fixture.h"

namespace hitide {
namespace {

using HostileDirectoryTest = FileStoreTest;

// Puts something at `path` that is no plain file.
void plant(const std::string& kind, const std::string& path) {
  std::filesystem::remove_all(path);
  if (kind == "pipe") {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  } else if (kind == "directory") {
    std::filesystem::create_directory(path);
  } else if (kind == "link") {
    std::filesystem::create_symlink("/dev/null", path);
  } else {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
}

const char* const kKinds[] = {"pipe", "directory", "link", "socket"};

TEST_F(HostileDirectoryTest, WhatIsNoPlainFileIsRefusedByName) {
  for (const char* place : {"LOCK", "FORMAT"}) {
    for (const char* kind : kKinds) {
      SCOPED_TRACE(std::string(kind) + " as " + place);
      options_.path = directory_ / (std::string(place) + kind);
      ASSERT_TRUE(open().ok());
      store_.reset();
      const std::string path = options_.path + "/" + place;
      plant(kind, path);
      const Status status = open();
      EXPECT_EQ(status.code(), StatusCode::failed_precondition);
      EXPECT_NE(status.message().find(path + " is not a plain file"), std::string::npos)
          << status.to_string();
      std::filesystem::remove_all(path);
      EXPECT_TRUE(open().ok()) << "as soon as it is gone";
    }
  }
}

TEST_F(HostileDirectoryTest, WhatIsNoPlainFileIsNoSegment) {
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(put("a", 100), kOk);
  store_.reset();
  int number = 10;
  for (const char* kind : kKinds) plant(kind, segment_path(options_.path, ++number));
  // Not even where it leads to a segment.
  std::filesystem::rename(segment_path(options_.path, 1), directory_ / "elsewhere");
  std::filesystem::create_symlink(directory_ / "elsewhere", segment_path(options_.path, 1));
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(check("a", 100), kMiss);
  EXPECT_EQ(store_->stats().bytes_used, 0u);
  EXPECT_EQ(put("b", 100), kOk);
  EXPECT_EQ(check("b", 100), kOk);
}

TEST_F(HostileDirectoryTest, ThingsInPlaceOfTheSegmentsDirectoryAreRefused) {
  for (const char* kind : {"pipe", "link", "socket"}) {
    options_.path = directory_ / (std::string("s") + kind);
    std::filesystem::create_directory(options_.path);
    plant(kind, segments_directory(options_.path));
    const Status status = open();
    EXPECT_FALSE(status.ok()) << kind;
    EXPECT_NE(status.message().find(segments_directory(options_.path)), std::string::npos);
  }
}

}  // namespace
}  // namespace hitide
