#include "device/sequence_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace hitide {
namespace {

const char* to_string(SequenceCommand::Kind kind) {
  switch (kind) {
    case SequenceCommand::Kind::bind:
      return "bind";
    case SequenceCommand::Kind::extend:
      return "extend";
    case SequenceCommand::Kind::replace:
      return "replace";
    case SequenceCommand::Kind::trim:
      return "trim";
  }
  return "?";
}

}  // namespace

SequenceTable::SequenceTable(const DeviceGeometry& geometry, EmulatedPages& pages, FaultLog& log)
    : sequence_count_(geometry.sequence_count),
      pages_(pages),
      log_(log),
      places_(geometry.page_count) {}

void SequenceTable::violation(const SequenceCommand& command, PageId page,
                              const std::string& text) {
  log_.add(DeviceFaultKind::contract, page, 0,
           fmt::format("{} of sequence {} at {} with {} pages: {}", to_string(command.kind),
                       command.sequence.value, command.position, command.pages.size(), text));
}

const SequenceTable::Pages* SequenceTable::find(SequenceId sequence) const {
  const auto found = sequences_.find(sequence.value);
  return found == sequences_.end() ? nullptr : &found->second;
}

const SequenceTable::Place* SequenceTable::place(PageId page) const {
  if (!pages_.known(page)) return nullptr;
  const Place& found = places_[page.index];
  return found.holders > 0 && found.page == page ? &found : nullptr;
}

bool SequenceTable::follows_filled(const Place& place) const {
  return place.position == 0 || pages_.filled(place.before);
}

bool SequenceTable::shared(const Pages& prefix, std::int32_t except) const {
  return std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& other) {
    return other.first != except && other.second.size() >= prefix.size() &&
           std::equal(prefix.begin(), prefix.end(), other.second.begin());
  });
}

void SequenceTable::apply(const SequenceCommand& command) {
  if (sequence_count_ == 0) return violation(command, {}, "the device has no sequences");
  if (!command.sequence.valid() ||
      static_cast<std::uint32_t>(command.sequence.value) >= sequence_count_) {
    return violation(command, {}, fmt::format("no such sequence, there are {}", sequence_count_));
  }
  for (const PageId page : command.pages) {
    if (!pages_.known(page)) return violation(command, page, page_name(page) + " is not there");
  }
  switch (command.kind) {
    case SequenceCommand::Kind::bind:
      bind(command);
      break;
    case SequenceCommand::Kind::extend:
      extend(command);
      break;
    case SequenceCommand::Kind::replace:
      replace(command);
      break;
    case SequenceCommand::Kind::trim:
      trim(command);
      break;
  }
}

// A page in several sequences stands at one position, behind the same pages.
void SequenceTable::hold(const SequenceCommand& command, const Pages& own, PageId page) {
  Place& place = places_[page.index];
  const auto position = static_cast<std::uint32_t>(own.size());
  const PageId before = own.empty() ? PageId{} : own.back();
  if (place.holders > 0 &&
      (place.page != page || place.position != position || place.before != before)) {
    violation(command, page,
              page_name(page) + " stands at different places, or behind different pages");
  }
  place = {page, position, before, place.holders + 1};
}

void SequenceTable::let_go(PageId page) {
  Place& place = places_[page.index];
  if (place.holders > 0) --place.holders;
  const bool last = place.holders == 0 && pages_.generation(page) == page.generation;
  if (last) pages_.release(page);  // nobody can reach its content any more
}

void SequenceTable::bind(const SequenceCommand& command) {
  if (sequences_.count(command.sequence.value) != 0) {
    return violation(command, {}, "the sequence is in use");
  }
  if (command.position != 0) return violation(command, {}, "binds from position 0 only");
  if (!shared(command.pages, command.sequence.value)) {
    return violation(command, {}, "no other sequence starts with these pages");
  }
  const bool all_filled = std::all_of(command.pages.begin(), command.pages.end(),
                                      [this](PageId page) { return pages_.filled(page); });
  if (!all_filled) violation(command, {}, "not all of these pages are filled");
  Pages own;
  for (const PageId page : command.pages) {
    hold(command, own, page);
    own.push_back(page);
  }
  sequences_[command.sequence.value] = std::move(own);
}

void SequenceTable::extend(const SequenceCommand& command) {
  Pages& own = sequences_[command.sequence.value];
  if (command.position != own.size()) {
    return violation(command, {}, fmt::format("the sequence has {} pages", own.size()));
  }
  for (const PageId page : command.pages) {
    const auto holds = [page](const auto& sequence) {
      return std::any_of(sequence.second.begin(), sequence.second.end(),
                         [page](PageId other) { return other.index == page.index; });
    };
    if (places_[page.index].holders > 0) {
      const auto found = std::find_if(sequences_.begin(), sequences_.end(), holds);
      violation(command, page,
                fmt::format("{} is in sequence {}", page_name(page),
                            found == sequences_.end() ? -1 : found->first));
    }
    if (page.generation <= pages_.generation(page)) {
      violation(command, page,
                fmt::format("{} is not new, generation {} was there", page_name(page),
                            pages_.generation(page)));
    }
    pages_.hand_out(page);
    hold(command, own, page);
    own.push_back(page);
  }
}

void SequenceTable::replace(const SequenceCommand& command) {
  const auto found = sequences_.find(command.sequence.value);
  if (found == sequences_.end() ||
      std::size_t{command.position} + command.pages.size() > found->second.size()) {
    return violation(command, {}, "the sequence is not so long");
  }
  Pages changed = found->second;
  for (std::size_t i = 0; i < command.pages.size(); ++i) {
    const PageId page = command.pages[i];
    PageId& own = changed[command.position + i];
    if (!pages_.filled(page) || !pages_.filled(own)) {
      const PageId empty = pages_.filled(page) ? own : page;
      violation(command, empty, page_name(empty) + " is not filled");
    } else if (!std::ranges::equal(pages_.bytes(page), pages_.bytes(own))) {
      violation(command, page,
                fmt::format("{} is not equal to {}", page_name(page), page_name(own)));
    }
    own = page;
  }
  const Pages prefix(
      changed.begin(),
      changed.begin() + static_cast<std::ptrdiff_t>(command.position + command.pages.size()));
  if (!shared(prefix, command.sequence.value)) {
    violation(command, {}, "no other sequence starts like that");
  }
  const Pages before = std::exchange(found->second, changed);
  std::vector<PageId> gone;  // let go after all are held, as most stay
  Pages own(before.begin(), before.begin() + command.position);
  for (std::size_t i = command.position; i < before.size(); ++i) {
    if (places_[before[i].index].holders == 1 && before[i] == changed[i]) {
      places_[before[i].index].holders = 0;  // the page itself stays, behind another one
    } else {
      gone.push_back(before[i]);
    }
    hold(command, own, changed[i]);
    own.push_back(changed[i]);
  }
  for (const PageId page : gone) let_go(page);
}

void SequenceTable::trim(const SequenceCommand& command) {
  if (!command.pages.empty()) violation(command, {}, "a trim names no pages");
  const auto found = sequences_.find(command.sequence.value);
  if (found == sequences_.end() || command.position > found->second.size()) {
    return violation(command, {}, "the sequence is not so long");
  }
  const Pages gone(found->second.begin() + command.position, found->second.end());
  found->second.resize(command.position);
  if (command.position == 0) sequences_.erase(found);
  for (const PageId page : gone) let_go(page);
}

}  // namespace hitide
