// Frames of the agent protocol, version 1, as the cache's side writes and reads them:
// docs/formats/agent_protocol.md. Whatever arrives is bounded and checked before it is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hitide/result.h>

namespace hitide {

enum class AgentCall : std::uint16_t {
  hello = 1,
  setup,
  add_lane,
  add_memory,
  remove_memory,
  exists,
  get,
  put,
  remove,
  stats,
  shutdown,
  allocate_memory,
  free_memory,
  put_absent,
  remove_prefix,
};
std::string_view to_string(AgentCall call);

enum class AgentStatus : std::uint32_t {
  ok = 0,
  bad_frame,
  bad_version,
  bad_request,
  not_ready,
  package_missing,
  store_failed,
};

inline constexpr std::uint32_t kFrameMagic = 0x41535448;  // "HTSA"
inline constexpr std::uint16_t kFrameVersion = 1;
inline constexpr std::uint16_t kFrameReply = 0x8000;
inline constexpr std::uint32_t kFrameBodyBytesMax = 4u << 20;
inline constexpr std::uint32_t kFrameItemsMax = 4096;
inline constexpr std::uint32_t kFrameKeyBytesMax = 1024;
inline constexpr std::size_t kFrameHeaderBytes = 24;

using FrameBytes = std::vector<std::byte>;
using FrameHeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
using FramePairs = std::vector<std::pair<std::string, std::string>>;

struct FrameHeader {
  std::uint16_t type = 0;  // an AgentCall, with kFrameReply in a reply
  std::uint64_t request = 0;
  std::uint32_t status = 0;  // AgentStatus of a reply
  std::uint32_t body_bytes = 0;
};

// One object of a get or a put: its bytes are [offset, offset + bytes) of a shared region.
struct FrameItem {
  std::string_view key;
  std::string_view group;
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

FrameHeaderBytes encode_header(const FrameHeader& header);
// data_loss: not a header of this version, or a body above the limit.
Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes);

// Bodies of requests. Callers keep to kFrameItemsMax items and kFrameKeyBytesMax bytes a text.
FrameBytes encode_keys(std::span<const std::string_view> keys);
FrameBytes encode_items(std::span<const FrameItem> items);
FrameBytes encode_pairs(const FramePairs& pairs);
FrameBytes encode_memory(std::uint32_t region, std::uint64_t offset, std::uint64_t bytes);
// Also the body of free_memory, whose number is a segment's.
FrameBytes encode_region(std::uint32_t region);
FrameBytes encode_segment(std::uint32_t segment, std::uint64_t bytes);

// Bodies of replies. data_loss: not such a body, or not `count` results.
Result<std::vector<std::int64_t>> decode_results(std::span<const std::byte> body,
                                                 std::size_t count);
Result<std::map<std::string, std::string>> decode_pairs(std::span<const std::byte> body);

}  // namespace hitide
