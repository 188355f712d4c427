#include <hitide/explanation.h>
#include <hitide/stats.h>

namespace hitide {

std::string_view to_string(StorageStatus status) {
  switch (status) {
    case StorageStatus::none:
      return "none";
    case StorageStatus::off:
      return "off";
    case StorageStatus::waiting:
      return "waiting";
    case StorageStatus::on:
      return "on";
    case StorageStatus::failing:
      return "failing";
  }
  return "unknown";
}

std::string_view to_string(MissReason reason) {
  switch (reason) {
#define HITIDE_X(name, text) \
  case MissReason::name:     \
    return #name;
    HITIDE_MISS_REASONS(HITIDE_X)
#undef HITIDE_X
  }
  return "unknown";
}

std::string_view meaning(MissReason reason) {
  switch (reason) {
#define HITIDE_X(name, text) \
  case MissReason::name:     \
    return text;
    HITIDE_MISS_REASONS(HITIDE_X)
#undef HITIDE_X
  }
  return {};
}

std::uint32_t Explanation::served_tokens(Tier tier) const {
  std::uint32_t tokens = 0;
  for (const ServedSpan& span : served) {
    if (span.tier == tier) tokens += span.end - span.begin;
  }
  return tokens;
}

std::uint32_t Explanation::served_tokens() const {
  std::uint32_t tokens = 0;
  for (const ServedSpan& span : served) tokens += span.end - span.begin;
  return tokens;
}

}  // namespace hitide
