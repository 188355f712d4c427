// Faults of transport over TCP, of ports and of process identity (kind K14), with real clients in
// agents: each agent is a process of its own that moves bytes from and to an owner in another one.
// B191 is tested with pages, B199 (hosts and ports in options) beside the options.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/file.h"
#include "storage/mooncake/mooncake_store.h"
#include "tests/integration/mooncake_environment.h"
#include "tests/support/store_bytes.h"

namespace hitide {
namespace {

using namespace std::chrono_literals;

constexpr auto kOk = StatusCode::ok;

TimePoint soon() { return SystemClock::instance().now() + 60s; }

// Ports that a process listens on over TCP.
std::set<std::uint16_t> listening_ports(int pid) {
  const std::filesystem::path process = "/proc/" + std::to_string(pid);
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<std::uint16_t> ports;
  for (const char* table : {"net/tcp", "net/tcp6"}) {
    std::ifstream file(process / table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
          timeout >> inode;
      if (state != "0A" || !inodes.contains(inode)) continue;
      ports.insert(
          static_cast<std::uint16_t>(std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

// Where a process has a memory file of this name mapped; 0: nowhere.
std::uint64_t mapped_at(int pid, const std::string& name) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("memfd:" + name) != std::string::npos) return std::stoull(line, nullptr, 16);
  }
  return 0;
}

class MooncakeTransportKindsTest : public testing::Test {
 protected:
  MooncakeTransportKindsTest() : stack_(mooncake_stack().python(), 256) {}

  void SetUp() override { ASSERT_TRUE(stack_.ready()); }

  std::unique_ptr<MooncakeStore> open() {
    auto store = MooncakeStore::open(stack_.options());
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(*store) : nullptr;
  }
  // Shared memory of the client's, registered.
  static std::span<std::byte> memory_of(MooncakeStore& store, const std::string& name,
                                        std::uint64_t bytes) {
    const auto region = store.allocate_memory(name, bytes);
    EXPECT_TRUE(region.ok()) << region.status().to_string();
    if (!region.ok()) return {};
    EXPECT_TRUE(store.register_memory(*region).ok());
    return region->bytes;
  }
  static StatusCode get(MooncakeStore& store, std::string_view key, std::span<std::byte> into) {
    const GetItem item{.key = key, .buffers = std::span(&into, 1)};
    ItemResult result;
    store.get({&item, 1}, {&result, 1}, {}).status.ignore();
    return result.code;
  }

  MooncakeStack stack_;
};

// B193: whoever can reach the ports that an agent listens on reads and writes none of the pool.
TEST_F(MooncakeTransportKindsTest, K14_B193_ForeignHeadersReachNoPoolMemory) {
  const auto store = open();
  ASSERT_TRUE(store);
  constexpr std::uint64_t kBytes = 1 << 20;
  const auto memory = memory_of(*store, "b193pool", kBytes);
  const auto secret = bytes_of("secret", kBytes);
  std::copy(secret.begin(), secret.end(), memory.begin());
  ASSERT_EQ(put_object(*store, "k", memory), kOk);
  const int agent = store->agent_pid();
  const std::uint64_t address = mapped_at(agent, "hitide_b193pool");
  ASSERT_NE(address, 0u);
  const std::set<std::uint16_t> ports = listening_ports(agent);
  ASSERT_FALSE(ports.empty()) << "a real client listens";
  const std::array<std::uint64_t, 4> sizes = {4096, 0, kBytes, UINT64_MAX};
  for (const std::uint16_t port : ports) {
    for (const std::uint64_t size : sizes) {
      for (const int opcode : {0, 1, 2, 255}) {
        for (const bool size_first : {true, false}) {
          const UniqueFd peer(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
          sockaddr_in to{};
          to.sin_family = AF_INET;
          to.sin_port = htons(port);
          to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
          if (::connect(peer.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) continue;
          std::vector<std::byte> frame(17 + 4096, std::byte{0xee});
          std::memcpy(frame.data(), size_first ? &size : &address, 8);
          std::memcpy(frame.data() + 8, size_first ? &address : &size, 8);
          frame[16] = static_cast<std::byte>(opcode);
          ::send(peer.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
          timeval limit{.tv_sec = 0, .tv_usec = 20'000};
          ::setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
          std::vector<std::byte> answer(8192);
          const ssize_t got = ::recv(peer.get(), answer.data(), answer.size(), 0);
          answer.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
          const auto found =
              std::search(answer.begin(), answer.end(), secret.begin(), secret.begin() + 16);
          EXPECT_EQ(found, answer.end()) << "port " << port << " opcode " << opcode;
        }
      }
    }
  }
  EXPECT_TRUE(std::equal(secret.begin(), secret.end(), memory.begin())) << "written to";
  EXPECT_EQ(get(*store, "k", memory), kOk) << "and calls go on";
  EXPECT_EQ(store->agent_pid(), agent);
}

// B195: more than 4 GiB over the connections of one client.
TEST_F(MooncakeTransportKindsTest, K14_B195_MoreThanFourGigabytesGoOverOneConnection) {
  const auto store = open();
  ASSERT_TRUE(store);
  constexpr std::uint64_t kPage = 4 << 20;
  constexpr std::size_t kPages = 8;
  const auto memory = memory_of(*store, "pool", kPages * kPage);
  std::vector<std::string> keys;
  std::vector<std::span<std::byte>> buffers;
  std::vector<GetItem> items(kPages);
  for (std::size_t i = 0; i < kPages; ++i) {
    keys.push_back("page/" + std::to_string(i));
    buffers.push_back(memory.subspan(i * kPage, kPage));
    const auto value = bytes_of(keys[i], kPage);
    std::copy(value.begin(), value.end(), buffers[i].begin());
    ASSERT_EQ(put_object(*store, keys[i], buffers[i]), kOk);
  }
  for (std::size_t i = 0; i < kPages; ++i) {
    items[i] = {.key = keys[i], .buffers = std::span(&buffers[i], 1)};
  }
  std::uint64_t moved = 0;
  std::vector<ItemResult> results(kPages);
  while (moved < 4500ull << 20) {
    ASSERT_TRUE(store->get(items, results, {}).status.ok()) << moved;
    for (const ItemResult& result : results) {
      ASSERT_EQ(result.code, kOk) << "after " << moved << " bytes";
      moved += result.bytes;
    }
  }
  const auto last = bytes_of(keys.back(), kPage);
  EXPECT_TRUE(std::equal(last.begin(), last.end(), buffers.back().begin()));
  EXPECT_EQ(store->counts().agent_starts, 1u);
}

// B197: clients that start at once have ports of their own.
TEST_F(MooncakeTransportKindsTest, K14_B197_ClientsThatStartTogetherShareNoPort) {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<std::unique_ptr<MooncakeStore>>> opening;
    for (int i = 0; i < 8; ++i) {
      opening.push_back(std::async(std::launch::async, [this] { return open(); }));
    }
    std::vector<std::unique_ptr<MooncakeStore>> stores;
    for (auto& one : opening) stores.push_back(one.get());
    std::set<std::uint16_t> seen;
    for (const auto& store : stores) {
      ASSERT_TRUE(store);
      ASSERT_TRUE(store->wait_until_ready(soon()).ok());
      const std::set<std::uint16_t> ports = listening_ports(store->agent_pid());
      EXPECT_FALSE(ports.empty());
      for (const std::uint16_t port : ports) {
        EXPECT_TRUE(seen.insert(port).second) << "port " << port << " twice";
      }
    }
    const std::string key = "round/" + std::to_string(round);
    ASSERT_EQ(put_object(*stores.front(), key, bytes_of(key, 100'000)), kOk);
    for (const auto& store : stores) EXPECT_EQ(check_object(*store, key, 100'000), kOk);
  }
}

// B200: clients of one machine are not taken for one process, also when one of them is another
// process than before.
TEST_F(MooncakeTransportKindsTest, K14_B200_TheSameAddressIsNotTheSameProcess) {
  const auto a = open();
  const auto b = open();
  ASSERT_TRUE(a && b);
  const auto from = memory_of(*a, "from", 1 << 20);
  const auto to = memory_of(*b, "to", 1 << 20);
  for (int round = 0; round < 3; ++round) {
    const std::string key = "shared/" + std::to_string(round);
    const auto value = bytes_of(key, 1 << 20);
    std::copy(value.begin(), value.end(), from.begin());
    ASSERT_EQ(put_object(*a, key, from), kOk);
    ASSERT_EQ(get(*b, key, to), kOk);
    EXPECT_TRUE(std::equal(value.begin(), value.end(), to.begin())) << round;
    const std::uint64_t starts = a->counts().agent_starts;
    ::kill(a->agent_pid(), SIGKILL);
    while (a->counts().agent_starts == starts) {
      ASSERT_TRUE(a->wait_until_ready(soon()).ok());
      std::this_thread::yield();
    }
  }
}

// The ports that connections may come from, in this network namespace.
class PortRange {
 public:
  PortRange() : before_(read()) {}
  ~PortRange() { write(before_); }
  static bool write(const std::string& range) {
    std::ofstream file(kPath);
    file << range;
    file.close();
    return static_cast<bool>(file);
  }
  static std::string read() {
    std::ifstream file(kPath);
    std::string line;
    std::getline(file, line);
    return line;
  }

 private:
  static constexpr const char* kPath = "/proc/sys/net/ipv4/ip_local_port_range";
  const std::string before_;
};

// B201: connections are kept and used again.
TEST_F(MooncakeTransportKindsTest, K14_B201_TenThousandPagesNeedFewPorts) {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/ns/net", error);
  const auto parents =
      std::filesystem::read_symlink("/proc/" + std::to_string(::getppid()) + "/ns/net", error);
  if (own == parents) GTEST_SKIP() << "no network namespace of its own: the range is everybody's";
  const PortRange restored;
  ASSERT_TRUE(PortRange::write("40000 40099"));
  const auto store = open();
  ASSERT_TRUE(store);
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kBatch = 64;
  const auto memory = memory_of(*store, "pool", kBatch * kPage);
  int failed = 0;
  for (int first = 0; first < 10'000; first += kBatch) {
    std::vector<std::string> keys;
    std::vector<std::span<std::byte>> targets;
    std::vector<std::span<const std::byte>> sources;
    std::vector<PutItem> puts(kBatch);
    std::vector<GetItem> gets(kBatch);
    for (std::size_t i = 0; i < kBatch; ++i) {
      keys.push_back("page/" + std::to_string(first + static_cast<int>(i)));
      targets.push_back(memory.subspan(i * kPage, kPage));
      sources.emplace_back(targets[i]);
    }
    for (std::size_t i = 0; i < kBatch; ++i) {
      puts[i] = {.key = keys[i], .buffers = std::span(&sources[i], 1)};
      gets[i] = {.key = keys[i], .buffers = std::span(&targets[i], 1)};
    }
    std::vector<ItemResult> results(kBatch);
    store->put(puts, results, {.keys_absent = true}).status.ignore();
    for (const ItemResult& result : results) failed += result.code == kOk ? 0 : 1;
    store->get(gets, results, {}).status.ignore();
    for (const ItemResult& result : results) failed += result.code == kOk ? 0 : 1;
  }
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(store->counts().agent_starts, 1u);
}

}  // namespace
}  // namespace hitide
