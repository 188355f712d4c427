#include "storage/prefix_file.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spec/model_text.h"
#include "storage/envelope.h"
#include "storage/marker.h"
#include "storage/stored_bytes.h"

namespace hitide {
namespace {

// docs/formats/export.md
constexpr std::array<char, 8> kMagic = {'H', 'T', 'P', 'R', 'E', 'F', 'I', 'X'};
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kZeroAt = 10;
constexpr std::size_t kModelBytesAt = 16;
constexpr std::size_t kPagesAt = 24;
constexpr std::size_t kIdentityAt = 32;
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kRecordHeadBytes = 16;  // page, pool, bytes of the object
constexpr std::size_t kEndBytes = 32;         // a record head, bytes of the file, checksum
constexpr std::uint32_t kEndMark = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kModelBytesMax = 1u << 20;
constexpr std::uint64_t kPagesMax = 1u << 30;

}  // namespace

std::uint64_t stored_object_bytes(const ModelSpec& model, std::uint32_t pool) {
  const PoolSpec& spec = model.pools[pool];
  if (has_bytes(spec)) return page_layout(spec).object_bytes();
  return pool == 0 && spec.kind == PoolKind::logical ? kMarkerBytes : 0;
}

bool object_needed(const ModelSpec& model, std::uint32_t pool, std::uint64_t page,
                   std::uint64_t pages) {
  const PoolSpec& spec = model.pools[pool];
  if (!spec.required || stored_object_bytes(model, pool) == 0) return false;
  return spec.hit_policy.kind == HitPolicy::Kind::all_pages ||
         page + spec.hit_policy.trailing_pages >= pages;
}

// ---- Writing -----------------------------------------------------------------------------------

Result<PrefixFileWriter> PrefixFileWriter::create(const std::string& path, const ModelSpec& model,
                                                  std::span<const PageKey> keys) {
  const std::string text = model_json(model);
  const Digest identity = identity_digest(model);
  const auto readable = model_from_json(text);
  if (!readable.ok() || identity_digest(*readable) != identity || text.size() > kModelBytesMax) {
    return Status(StatusCode::invalid_argument,
                  "the model's description cannot be written down so that it is the same again");
  }
  PrefixFileWriter writer;
  writer.path_ = path;
  writer.written_to_ = path;
  writer.checksum_ = std::make_unique<Checksum64>();
  struct stat info {};
  const bool there = ::stat(path.c_str(), &info) == 0;
  if (there && S_ISDIR(info.st_mode)) return errno_status(EISDIR, "write", path);
  if (!there || S_ISREG(info.st_mode)) {
    writer.written_to_ = fmt::format("{}.{}.part", path, ::getpid());
  }
  const bool beside = writer.written_to_ != path;
  const int flags = O_WRONLY | O_CLOEXEC | (beside ? O_CREAT | O_EXCL : 0);
  writer.fd_ = UniqueFd(::open(writer.written_to_.c_str(), flags, 0666));
  if (!writer.fd_.valid()) {
    const int error = errno;
    writer.written_to_ = path;
    return errno_status(error, "write", path);
  }
  std::array<std::byte, kHeaderBytes> header{};
  put(header, 0, kMagic);
  put(header, kVersionAt, kPrefixFileVersion);
  put(header, kModelBytesAt, std::uint64_t{text.size()});
  put(header, kPagesAt, std::uint64_t{keys.size()});
  put(header, kIdentityAt, identity.bytes);
  HITIDE_RETURN_IF_ERROR(writer.write(header));
  HITIDE_RETURN_IF_ERROR(writer.write(std::as_bytes(std::span(text))));
  for (const PageKey& key : keys) {
    HITIDE_RETURN_IF_ERROR(writer.write(std::as_bytes(std::span(key.bytes))));
  }
  std::array<std::byte, 8> sum{};
  put(sum, 0, writer.checksum_->finish());
  HITIDE_RETURN_IF_ERROR(writer.write(sum));
  return writer;
}

PrefixFileWriter::PrefixFileWriter(PrefixFileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      written_to_(std::move(other.written_to_)),
      finished_(std::exchange(other.finished_, true)),
      fd_(std::move(other.fd_)),
      checksum_(std::move(other.checksum_)),
      objects_(other.objects_),
      bytes_(other.bytes_) {}

PrefixFileWriter::~PrefixFileWriter() {
  if (!finished_ && written_to_ != path_) ::unlink(written_to_.c_str());
}

Status PrefixFileWriter::add(std::uint32_t page, std::uint32_t pool,
                             std::span<const std::byte> object) {
  std::array<std::byte, kRecordHeadBytes> head{};
  put(head, 0, page);
  put(head, 4, pool);
  put(head, 8, std::uint64_t{object.size()});
  HITIDE_RETURN_IF_ERROR(write(head));
  HITIDE_RETURN_IF_ERROR(write(object));
  ++objects_;
  return {};
}

Status PrefixFileWriter::finish() {
  std::array<std::byte, kEndBytes> end{};
  put(end, 0, kEndMark);
  put(end, 4, kEndMark);
  put(end, 8, objects_);
  put(end, 16, bytes_ + kEndBytes);
  HITIDE_RETURN_IF_ERROR(write(std::span(end).first<24>()));
  put(end, 24, checksum_->finish());
  HITIDE_RETURN_IF_ERROR(write(std::span(end).last<8>()));
  // A pipe or device has nothing to sync.
  if (::fsync(fd_.get()) != 0 && errno != EINVAL && errno != EROFS) {
    return errno_status(errno, "sync", path_);
  }
  if (written_to_ != path_ && ::rename(written_to_.c_str(), path_.c_str()) != 0) {
    return errno_status(errno, "rename to", path_);
  }
  finished_ = true;
  return {};
}

Status PrefixFileWriter::write(std::span<const std::byte> bytes) {
  checksum_->update(bytes);
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno_status(errno, "write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

// ---- Reading -----------------------------------------------------------------------------------

Status PrefixFileReader::damaged(const std::string& what) const {
  return Status(StatusCode::data_loss, fmt::format("{}: {}: it is damaged or was not written to "
                                                   "its end; export it again",
                                                   path_, what));
}

Result<PrefixFileReader> PrefixFileReader::open(const std::string& path) {
  PrefixFileReader reader;
  reader.path_ = path;
  // A pipe must not be waited for: it is refused.
  reader.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!reader.fd_.valid()) return errno_status(errno, "open", path);
  struct stat info {};
  if (::fstat(reader.fd_.get(), &info) != 0) return errno_status(errno, "read", path);
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::invalid_argument,
                  path + ": is no plain file: it must be read twice, first to verify it");
  }
  reader.head_.file_bytes = static_cast<std::uint64_t>(info.st_size);
  HITIDE_RETURN_IF_ERROR(reader.read_head());
  return reader;
}

Status PrefixFileReader::read(std::span<std::byte> bytes) {
  if (bytes.size() > head_.file_bytes - std::min(at_, head_.file_bytes)) {
    return damaged(fmt::format("ends at byte {}, {} more should follow byte {}", head_.file_bytes,
                               bytes.size(), at_));
  }
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(errno, "read", path_);
    if (got == 0) return damaged(fmt::format("ends at byte {}", at_));
    at_ += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Status PrefixFileReader::read_head() {
  std::array<std::byte, kHeaderBytes> header{};
  const std::size_t some = std::min<std::uint64_t>(kHeaderBytes, head_.file_bytes);
  HITIDE_RETURN_IF_ERROR(read(std::span(header).first(some)));
  if (some < kMagic.size() || take<std::array<char, 8>>(header, 0) != kMagic) {
    return Status(StatusCode::invalid_argument,
                  path_ + ": was not written by `hitide export`: it begins otherwise");
  }
  if (some < kHeaderBytes) return damaged(fmt::format("ends at byte {}", some));
  const auto version = take<std::uint16_t>(header, kVersionAt);
  const auto model_bytes = take<std::uint64_t>(header, kModelBytesAt);
  const auto pages = take<std::uint64_t>(header, kPagesAt);
  if (model_bytes > kModelBytesMax || pages > kPagesMax || pages == 0) {
    return damaged(
        fmt::format("its head speaks of {} pages and {} bytes of description", pages, model_bytes));
  }
  const std::uint64_t rest = model_bytes + pages * sizeof(PageKey) + 8;
  if (rest > head_.file_bytes - kHeaderBytes) {
    return damaged(fmt::format("ends at byte {}, before its head of {} bytes does",
                               head_.file_bytes, kHeaderBytes + rest));
  }
  head_bytes_.assign(header.begin(), header.end());
  head_bytes_.resize(kHeaderBytes + rest);
  HITIDE_RETURN_IF_ERROR(read(std::span(head_bytes_).subspan(kHeaderBytes)));
  const std::span<const std::byte> summed =
      std::span<const std::byte>(head_bytes_).first(head_bytes_.size() - 8);
  if (checksum64(summed) != take<std::uint64_t>(head_bytes_, summed.size())) {
    // The version stands in what is not believed; a newer one may have another head.
    if (version > kPrefixFileVersion) {
      return Status(StatusCode::failed_precondition,
                    fmt::format("{}: version {}, and this program knows {}: it is of a newer "
                                "version of HiTide, or damaged",
                                path_, version, kPrefixFileVersion));
    }
    return damaged("the checksum of its head does not match");
  }
  if (version != kPrefixFileVersion) {
    return Status(StatusCode::failed_precondition,
                  fmt::format("{}: version {}, and this program knows {}", path_, version,
                              kPrefixFileVersion));
  }
  const bool zero = std::all_of(header.begin() + kZeroAt, header.begin() + kModelBytesAt,
                                [](std::byte byte) { return byte == std::byte{0}; });
  if (!zero) return damaged("bytes of its head that must be zero are not");
  const std::string_view text(reinterpret_cast<const char*>(head_bytes_.data()) + kHeaderBytes,
                              model_bytes);
  auto model = model_from_json(text);
  if (!model.ok()) return damaged(std::string(model.status().message()));
  head_.model = std::move(*model);
  head_.identity.bytes = take<decltype(Digest::bytes)>(header, kIdentityAt);
  if (identity_digest(head_.model) != head_.identity) {
    return damaged("its namespace is not that of the model that it describes");
  }
  head_.keys.resize(pages);
  for (std::uint64_t page = 0; page < pages; ++page) {
    const std::size_t place = kHeaderBytes + model_bytes + page * sizeof(PageKey);
    head_.keys[page].bytes = take<decltype(PageKey::bytes)>(head_bytes_, place);
  }
  rewind();
  return {};
}

void PrefixFileReader::rewind() {
  at_ = head_bytes_.size();
  objects_ = 0;
  last_.reset();
  needed_.assign(head_.model.pools.size(), 0);
  checksum_ = std::make_unique<Checksum64>();
  checksum_->update(head_bytes_);
}

Result<std::optional<PrefixFileReader::Record>> PrefixFileReader::next(
    std::vector<std::byte>& object) {
  std::array<std::byte, kRecordHeadBytes> head{};
  HITIDE_RETURN_IF_ERROR(read(head));
  checksum_->update(head);
  const Record record{.page = take<std::uint32_t>(head, 0), .pool = take<std::uint32_t>(head, 4)};
  const auto bytes = take<std::uint64_t>(head, 8);
  if (record.page == kEndMark && record.pool == kEndMark) {
    HITIDE_RETURN_IF_ERROR(check_end(bytes));
    return std::optional<Record>();
  }
  if (record.page >= head_.keys.size() || record.pool >= head_.model.pools.size()) {
    return damaged(fmt::format("an object of page {} and pool {} before byte {}, of {} and {}",
                               record.page, record.pool, at_, head_.keys.size(),
                               head_.model.pools.size()));
  }
  if (last_ && std::pair(record.page, record.pool) <= std::pair(last_->page, last_->pool)) {
    return damaged(fmt::format("the objects before byte {} are out of order", at_));
  }
  HITIDE_RETURN_IF_ERROR(read_object(record, bytes, object));
  last_ = record;
  ++objects_;
  return std::optional<Record>(record);
}

Status PrefixFileReader::read_object(const Record& record, std::uint64_t bytes,
                                     std::vector<std::byte>& object) {
  const PoolSpec& pool = head_.model.pools[record.pool];
  const std::uint64_t expected = stored_object_bytes(head_.model, record.pool);
  if (bytes != expected || expected == 0) {
    return damaged(fmt::format("page {} has {} bytes of pool {}, where {} are stored", record.page,
                               bytes, pool.name, expected));
  }
  if (bytes > head_.file_bytes - at_) {
    return damaged(fmt::format("ends at byte {}, in page {}", head_.file_bytes, record.page));
  }
  object.resize(bytes);
  HITIDE_RETURN_IF_ERROR(read(object));
  checksum_->update(object);
  const EnvelopeExpectation page = {.identity = head_.identity,
                                    .key = head_.keys[record.page],
                                    .pool = pool.name,
                                    .part = part_of(head_.model.ranks),
                                    .payload_bytes = pool.page_bytes};
  const EnvelopeVerdict verdict =
      has_bytes(pool) ? verify_envelope(page, object) : verify_marker(page, object);
  if (!verdict.ok) {
    return damaged(
        fmt::format("page {}, pool {}: {}", record.page, pool.name, meaning(verdict.fault)));
  }
  if (object_needed(head_.model, record.pool, record.page, head_.keys.size()))
    ++needed_[record.pool];
  return {};
}

Status PrefixFileReader::check_end(std::uint64_t objects) {
  std::array<std::byte, kEndBytes - kRecordHeadBytes> end{};
  HITIDE_RETURN_IF_ERROR(read(end));
  checksum_->update(std::span(end).first<8>());
  if (take<std::uint64_t>(end, 8) != checksum_->finish()) {
    return damaged("the checksum of the file does not match");
  }
  if (objects != objects_ || take<std::uint64_t>(end, 0) != at_) {
    return damaged(fmt::format("it says that it has {} objects and {} bytes, and has {} and {}",
                               objects, take<std::uint64_t>(end, 0), objects_, at_));
  }
  if (at_ != head_.file_bytes) {
    return damaged(fmt::format("{} bytes behind its end", head_.file_bytes - at_));
  }
  const std::uint64_t pages = head_.keys.size();
  for (std::uint32_t i = 0; i < needed_.size(); ++i) {
    const PoolSpec& pool = head_.model.pools[i];
    std::uint64_t wanted = 0;
    if (object_needed(head_.model, i, 0, pages)) {
      wanted = pages;
    } else if (object_needed(head_.model, i, pages - 1, pages)) {
      wanted = pool.hit_policy.trailing_pages;
    }
    if (needed_[i] == wanted) continue;
    return damaged(fmt::format("of pool {} it has {} objects of {} that its prefix needs",
                               pool.name, needed_[i], wanted));
  }
  return {};
}

}  // namespace hitide
