#include "spec/model_text.h"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hitide {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kPoolsMax = 64;
constexpr std::size_t kNumericsMax = 1024;
constexpr std::uint64_t kPageBytesMax = 1ull << 40;
constexpr std::array<std::string_view, 7> kKinds = {"mha",   "mla",     "k_only",         "packed",
                                                    "state", "logical", "side_pools_only"};
constexpr std::array<std::string_view, 2> kPolicies = {"all_pages", "trailing_pages"};
constexpr std::array<std::string_view, 1> kLayouts = {"page_packed"};

template <typename Enum, std::size_t kCount>
std::string_view name_of(const std::array<std::string_view, kCount>& names, Enum value) {
  return names.at(static_cast<std::size_t>(value));
}

// Takes the fields of an object; remembers the first that is not as it should be.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) refuse("must be an object");
  }
  const Status& status() const { return status_; }

  void take(const char* name, std::string& out) {
    const Json* const value = find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return refuse(name, "must be text");
    out = value->get<std::string>();
  }
  void take(const char* name, bool& out) {
    const Json* const value = find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return refuse(name, "must be true or false");
    out = value->get<bool>();
  }
  template <typename Number>
  void take_number(const char* name, std::uint64_t most, Number& out) {
    const Json* const value = find(name);
    if (value == nullptr) return;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() > most) {
      return refuse(name, fmt::format("must be a whole number up to {}", most));
    }
    out = static_cast<Number>(value->get<std::uint64_t>());
  }
  void take(const char* name, std::uint32_t& out) {
    take_number(name, std::numeric_limits<std::uint32_t>::max(), out);
  }
  template <typename Enum, std::size_t kCount>
  void take(const char* name, const std::array<std::string_view, kCount>& names, Enum& out) {
    std::string word;
    take(name, word);
    if (!status_.ok()) return;
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end()) {
      return refuse(name, fmt::format("'{}' is not one of {}", word, fmt::join(names, ", ")));
    }
    out = static_cast<Enum>(found - names.begin());
  }
  const Json* list(const char* name, std::size_t most) {
    const Json* const value = find(name);
    if (value == nullptr) return nullptr;
    if (!value->is_array() || value->size() > most) {
      refuse(name, fmt::format("must be a list of at most {}", most));
      return nullptr;
    }
    return value;
  }
  const Json* find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto found = json_.find(name);
    if (found == json_.end()) {
      refuse(name, "is missing");
      return nullptr;
    }
    return &*found;
  }
  void refuse(const char* name, const std::string& why) { refuse(std::string(name) + ": " + why); }

 private:
  void refuse(const std::string& why) {
    if (status_.ok()) status_ = Status(StatusCode::invalid_argument, where_ + why);
  }
  const Json& json_;
  const std::string where_;
  Status status_;
};

Json pool_json(const PoolSpec& pool) {
  return {{"name", pool.name},
          {"kind", name_of(kKinds, pool.kind)},
          {"page_size", pool.page_size},
          {"page_bytes", pool.page_bytes},
          {"layers", pool.layers},
          {"heads", pool.heads},
          {"head_dim", pool.head_dim},
          {"dtype", pool.dtype},
          {"index_source", pool.index_source},
          {"hit_policy", name_of(kPolicies, pool.hit_policy.kind)},
          {"trailing_pages", pool.hit_policy.trailing_pages},
          {"required", pool.required},
          {"layout", name_of(kLayouts, pool.layout)}};
}

Result<PoolSpec> pool_of(const Json& json, std::size_t place) {
  PoolSpec pool;
  Fields fields(json, fmt::format("model: pools[{}]: ", place));
  fields.take("name", pool.name);
  fields.take("kind", kKinds, pool.kind);
  fields.take("page_size", pool.page_size);
  fields.take_number("page_bytes", kPageBytesMax, pool.page_bytes);
  fields.take("layers", pool.layers);
  fields.take("heads", pool.heads);
  fields.take("head_dim", pool.head_dim);
  fields.take("dtype", pool.dtype);
  fields.take("index_source", pool.index_source);
  fields.take("hit_policy", kPolicies, pool.hit_policy.kind);
  fields.take("trailing_pages", pool.hit_policy.trailing_pages);
  fields.take("required", pool.required);
  fields.take("layout", kLayouts, pool.layout);
  HITIDE_RETURN_IF_ERROR(fields.status());
  return pool;
}

struct RankField {
  const char* name;
  std::uint32_t RankGeometry::*value;
};
constexpr RankField kRankFields[] = {
    {"tp_rank", &RankGeometry::tp_rank}, {"tp_size", &RankGeometry::tp_size},
    {"pp_rank", &RankGeometry::pp_rank}, {"pp_size", &RankGeometry::pp_size},
    {"cp_rank", &RankGeometry::cp_rank}, {"cp_size", &RankGeometry::cp_size},
    {"dp_rank", &RankGeometry::dp_rank}, {"dp_size", &RankGeometry::dp_size},
};

Result<ModelSpec> model_of(const Json& json) {
  ModelSpec model;
  Fields fields(json, "model: ");
  fields.take("model_name", model.model_name);
  fields.take("weights_digest", model.weights_digest);
  const Json* const numerics = fields.list("numerics", kNumericsMax);
  const Json* const pools = fields.list("pools", kPoolsMax);
  const Json* const ranks = fields.find("ranks");
  HITIDE_RETURN_IF_ERROR(fields.status());
  for (const Json& fact : *numerics) {
    if (!fact.is_string()) {
      return Status(StatusCode::invalid_argument, "model: numerics: must be a list of texts");
    }
    model.numerics.push_back(fact.get<std::string>());
  }
  for (const Json& pool : *pools) {
    HITIDE_ASSIGN_OR_RETURN(PoolSpec spec, pool_of(pool, model.pools.size()));
    model.pools.push_back(std::move(spec));
  }
  Fields rank_fields(*ranks, "model: ranks: ");
  for (const RankField& field : kRankFields) rank_fields.take(field.name, model.ranks.*field.value);
  HITIDE_RETURN_IF_ERROR(rank_fields.status());
  HITIDE_RETURN_IF_ERROR(validate(model));
  return model;
}

// Every fact of the identity by its name.
std::map<std::string, std::string> facts_of(const ModelSpec& model) {
  std::map<std::string, std::string> facts = {{"weights", model.weights_digest}};
  for (const std::string& fact : model.numerics) {
    const std::size_t equals = fact.find('=');
    const bool named = equals != std::string::npos;
    facts[fact.substr(0, equals)] = named ? fact.substr(equals + 1) : "set";
  }
  std::string names;
  for (const PoolSpec& pool : model.pools) {
    names += (names.empty() ? "" : " ") + pool.name;
    const Json json = pool_json(pool);
    for (const auto& [field, value] : json.items()) {
      if (field == "name" || field == "required") continue;  // no part of the identity, or its key
      facts[fmt::format("pool {} {}", pool.name, field)] =
          value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  facts["pools"] = names;
  const RankGeometry& ranks = model.ranks;
  facts["ranks"] = fmt::format("tp {} pp {} cp {}", ranks.tp_size, ranks.pp_size, ranks.cp_size);
  return facts;
}

}  // namespace

std::string model_json(const ModelSpec& model) {
  Json json = {{"model_name", model.model_name},
               {"weights_digest", model.weights_digest},
               {"numerics", model.numerics},
               {"pools", Json::array()},
               {"ranks", Json::object()}};
  for (const PoolSpec& pool : model.pools) json["pools"].push_back(pool_json(pool));
  for (const RankField& field : kRankFields) json["ranks"][field.name] = model.ranks.*field.value;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ModelSpec> model_from_json(std::string_view text) {
  try {
    const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
    if (json.is_discarded()) return Status(StatusCode::invalid_argument, "model: is no JSON");
    return model_of(json);
  } catch (const std::exception& error) {
    return Status(StatusCode::invalid_argument, fmt::format("model: {}", error.what()));
  }
}

std::vector<std::string> model_differences(const ModelSpec& left, std::string_view left_words,
                                           const ModelSpec& right, std::string_view right_words) {
  const auto ours = facts_of(left);
  const auto theirs = facts_of(right);
  std::set<std::string> names;
  for (const auto& [name, value] : ours) names.insert(name);
  for (const auto& [name, value] : theirs) names.insert(name);
  const auto value_in = [](const std::map<std::string, std::string>& facts,
                           const std::string& name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string("absent") : found->second;
  };
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    const std::string mine = value_in(ours, name);
    const std::string other = value_in(theirs, name);
    if (mine == other) continue;
    differences.push_back(
        fmt::format("{}: {} {}, {} {}", name, mine, left_words, other, right_words));
  }
  return differences;
}

}  // namespace hitide
