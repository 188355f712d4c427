#include "storage/mooncake/frames.h"

#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace hitide {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little endian");

constexpr std::size_t kPairBytes = 4;

template <typename T>
void append(FrameBytes& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

void append_text(FrameBytes& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <typename T>
T read(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

std::string_view to_string(AgentCall call) {
  switch (call) {
    case AgentCall::hello:
      return "hello";
    case AgentCall::setup:
      return "setup";
    case AgentCall::add_lane:
      return "add_lane";
    case AgentCall::add_memory:
      return "add_memory";
    case AgentCall::remove_memory:
      return "remove_memory";
    case AgentCall::exists:
      return "exists";
    case AgentCall::get:
      return "get";
    case AgentCall::put:
      return "put";
    case AgentCall::remove:
      return "remove";
    case AgentCall::stats:
      return "stats";
    case AgentCall::shutdown:
      return "shutdown";
    case AgentCall::allocate_memory:
      return "allocate_memory";
    case AgentCall::free_memory:
      return "free_memory";
    case AgentCall::put_absent:
      return "put";
    case AgentCall::remove_prefix:
      return "remove_prefix";
  }
  return "unknown";
}

FrameHeaderBytes encode_header(const FrameHeader& header) {
  FrameHeaderBytes out;
  const auto put = [&out](std::size_t at, auto value) {
    std::memcpy(out.data() + at, &value, sizeof value);
  };
  put(0, kFrameMagic);
  put(4, kFrameVersion);
  put(6, header.type);
  put(8, header.request);
  put(16, header.status);
  put(20, header.body_bytes);
  return out;
}

Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  const auto magic = read<std::uint32_t>(bytes, 0);
  const auto version = read<std::uint16_t>(bytes, 4);
  const FrameHeader header{.type = read<std::uint16_t>(bytes, 6),
                           .request = read<std::uint64_t>(bytes, 8),
                           .status = read<std::uint32_t>(bytes, 16),
                           .body_bytes = read<std::uint32_t>(bytes, 20)};
  if (magic != kFrameMagic || version != kFrameVersion) {
    return Status(StatusCode::data_loss,
                  fmt::format("agent frame: magic {:#x}, version {} instead of {:#x}, {}", magic,
                              version, kFrameMagic, kFrameVersion));
  }
  if (header.body_bytes > kFrameBodyBytesMax) {
    return Status(StatusCode::data_loss,
                  fmt::format("agent frame: a body of {} bytes; the limit is {}", header.body_bytes,
                              kFrameBodyBytesMax));
  }
  return header;
}

FrameBytes encode_keys(std::span<const std::string_view> keys) {
  FrameBytes out;
  append(out, static_cast<std::uint32_t>(keys.size()));
  for (const std::string_view key : keys) append(out, static_cast<std::uint16_t>(key.size()));
  for (const std::string_view key : keys) append_text(out, key);
  return out;
}

FrameBytes encode_items(std::span<const FrameItem> items) {
  FrameBytes out;
  append(out, static_cast<std::uint32_t>(items.size()));
  for (const FrameItem& item : items) {
    append(out, item.region);
    append(out, static_cast<std::uint16_t>(item.key.size()));
    append(out, static_cast<std::uint16_t>(item.group.size()));
    append(out, item.offset);
    append(out, item.bytes);
  }
  for (const FrameItem& item : items) append_text(out, item.key);
  for (const FrameItem& item : items) append_text(out, item.group);
  return out;
}

FrameBytes encode_pairs(const FramePairs& pairs) {
  FrameBytes out;
  append(out, static_cast<std::uint32_t>(pairs.size()));
  for (const auto& [name, value] : pairs) {
    append(out, static_cast<std::uint16_t>(name.size()));
    append(out, static_cast<std::uint16_t>(value.size()));
  }
  for (const auto& [name, value] : pairs) {
    append_text(out, name);
    append_text(out, value);
  }
  return out;
}

FrameBytes encode_memory(std::uint32_t region, std::uint64_t offset, std::uint64_t bytes) {
  FrameBytes out;
  append(out, region);
  append(out, offset);
  append(out, bytes);
  return out;
}

FrameBytes encode_region(std::uint32_t region) {
  FrameBytes out;
  append(out, region);
  return out;
}

FrameBytes encode_segment(std::uint32_t segment, std::uint64_t bytes) {
  FrameBytes out;
  append(out, segment);
  append(out, bytes);
  return out;
}

Result<std::vector<std::int64_t>> decode_results(std::span<const std::byte> body,
                                                 std::size_t count) {
  constexpr std::size_t kHead = 8;  // count, microseconds in the store
  if (body.size() != kHead + count * sizeof(std::int64_t) ||
      read<std::uint32_t>(body, 0) != count) {
    return Status(
        StatusCode::data_loss,
        fmt::format("agent frame: a body of {} bytes is not {} results", body.size(), count));
  }
  std::vector<std::int64_t> results(count);
  for (std::size_t i = 0; i < count; ++i) {
    results[i] = read<std::int64_t>(body, kHead + i * sizeof(std::int64_t));
  }
  return results;
}

Result<std::map<std::string, std::string>> decode_pairs(std::span<const std::byte> body) {
  const Status bad(StatusCode::data_loss,
                   fmt::format("agent frame: a body of {} bytes is no list of pairs", body.size()));
  if (body.size() < 4) return bad;
  const auto count = read<std::uint32_t>(body, 0);
  if (count > kFrameItemsMax || body.size() < 4 + count * kPairBytes) return bad;
  std::size_t at = 4 + count * kPairBytes;
  std::size_t left = body.size() - at;
  const auto take = [&](std::size_t length_at, std::string& text) {
    const std::size_t length = read<std::uint16_t>(body, length_at);
    if (length > left) return false;
    text.assign(reinterpret_cast<const char*>(body.data()) + at, length);
    at += length;
    left -= length;
    return true;
  };
  std::map<std::string, std::string> pairs;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::string name;
    std::string value;
    if (!take(4 + i * kPairBytes, name) || !take(6 + i * kPairBytes, value)) return bad;
    pairs.insert_or_assign(std::move(name), std::move(value));
  }
  if (left != 0) return bad;
  return pairs;
}

}  // namespace hitide
