#include "device/emulated_pages.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace hitide {
namespace {

bool on_copy_stream(const Worker& who) {
  return who.stream == kToHostStream.index || who.stream == kToDeviceStream.index;
}

}  // namespace

std::string page_name(PageId page) {
  return fmt::format("page {} generation {}", page.index, page.generation);
}

void FaultLog::add(DeviceFaultKind kind, PageId page, std::uint64_t op_id, std::string text) {
  if (faults_.size() < kFaultsMax) faults_.push_back({kind, page, op_id, std::move(text)});
}

EmulatedPages::EmulatedPages(const DeviceGeometry& geometry, FaultLog& log)
    : page_bytes_(geometry.page_bytes), log_(log), pages_(geometry.page_count) {}

bool EmulatedPages::filled(PageId page) const {
  return known(page) && pages_[page.index].filled &&
         pages_[page.index].generation == page.generation;
}

bool EmulatedPages::ordered_behind(const Worker& before, PageId page, const Worker& who,
                                   DeviceFaultKind kind) {
  if (before.tick == 0 || who.ordered->covers(before.stream, before.tick)) return true;
  log_.add(kind, page, who.op_id,
           fmt::format("{} uses {} while {} may be under way: wait for an event recorded behind "
                       "it, or let the host see it done first",
                       *who.name, page_name(page), *before.name));
  return false;
}

void EmulatedPages::note_copy(Page& page, const Worker& who) {
  if (on_copy_stream(who)) page.copy = who;
}

bool EmulatedPages::order_read(PageId page, const Worker& who) {
  if (!known(page)) return true;  // reported when it is carried out
  Page& own = pages_[page.index];
  const bool ordered = ordered_behind(own.write, page, who, DeviceFaultKind::unordered_read);
  const auto same = std::find_if(own.reads.begin(), own.reads.end(),
                                 [&](const Worker& read) { return read.stream == who.stream; });
  if (same == own.reads.end()) {
    own.reads.push_back(who);
  } else {
    *same = who;
  }
  note_copy(own, who);
  return ordered;
}

bool EmulatedPages::order_write(PageId page, const Worker& who) {
  if (!known(page)) return true;
  Page& own = pages_[page.index];
  constexpr DeviceFaultKind kKind = DeviceFaultKind::unordered_write;
  bool ordered = ordered_behind(own.write, page, who, kKind);
  for (const Worker& read : own.reads) {
    if (ordered) ordered = ordered_behind(read, page, who, kKind);
  }
  own.write = who;
  own.reads.clear();
  note_copy(own, who);
  return ordered;
}

const Worker* EmulatedPages::last_copy(PageId page) const {
  if (!known(page) || pages_[page.index].copy.tick == 0) return nullptr;
  return &pages_[page.index].copy;
}

bool EmulatedPages::usable(PageId page, const Worker& who, bool reported) {
  const auto report = [&](DeviceFaultKind kind, const std::string& what) {
    if (!reported) {
      log_.add(kind, page, who.op_id,
               fmt::format("{} uses {}: {}", *who.name, page_name(page), what));
    }
    return false;
  };
  if (!known(page)) {
    return report(DeviceFaultKind::contract,
                  fmt::format("no such page, there are {}", pages_.size()));
  }
  const Page& own = pages_[page.index];
  if (page.generation < own.generation) {
    return report(
        DeviceFaultKind::reallocated,
        fmt::format("it has been handed out anew, generation {} is there", own.generation));
  }
  if (page.generation == own.generation && own.released) {
    return report(DeviceFaultKind::released, "it has been released");
  }
  return true;
}

StatusCode EmulatedPages::read(PageId page, std::span<std::byte> out, const Worker& who,
                               bool reported) {
  std::fill(out.begin(), out.end(), EmulatedDevice::kPoison);
  if (!usable(page, who, reported)) return StatusCode::internal;
  if (!filled(page)) {
    if (!reported) {
      log_.add(DeviceFaultKind::not_filled, page, who.op_id,
               fmt::format("{} reads {}: not filled, nobody has written it", *who.name,
                           page_name(page)));
    }
    return StatusCode::internal;
  }
  std::copy_n(pages_[page.index].bytes.begin(), out.size(), out.begin());
  return StatusCode::ok;
}

bool EmulatedPages::write(PageId page, std::span<const std::byte> bytes, const Worker& who,
                          bool reported) {
  if (!usable(page, who, reported)) return false;
  if (filled(page)) {
    if (!reported) {
      log_.add(DeviceFaultKind::contract, page, who.op_id,
               fmt::format("{} writes {}: filled already", *who.name, page_name(page)));
    }
    return false;
  }
  Page& own = pages_[page.index];
  own.generation = page.generation;
  own.released = false;
  own.filled = true;
  own.bytes.assign(bytes.begin(), bytes.end());
  return true;
}

void EmulatedPages::poison(Page& page) {
  page.filled = false;
  std::fill(page.bytes.begin(), page.bytes.end(), EmulatedDevice::kPoison);
}

void EmulatedPages::hand_out(PageId page) {
  Page& own = pages_[page.index];
  poison(own);
  own.generation = page.generation;
  own.released = false;
}

void EmulatedPages::release(PageId page) {
  Page& own = pages_[page.index];
  poison(own);
  own.released = true;
}

}  // namespace hitide
