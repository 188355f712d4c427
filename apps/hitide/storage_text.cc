#include "storage_text.h"

#include <exception>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <hitide/registration.h>

namespace hitide::cli {
namespace {

// The value of that name. An unknown one, of a newer server, is the last.
template <typename Enum>
Enum by_name(const nlohmann::json& name, Enum last) {
  for (int i = 0; i < static_cast<int>(last); ++i) {
    if (name == to_string(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return last;
}

PoolRegistration row_of(const nlohmann::json& json) {
  PoolRegistration row;
  row.pool = json.at("pool");
  row.bytes = json.at("bytes");
  row.required = json.at("required");
  row.allocator = by_name(json.at("allocator"), AllocatorKind::unknown);
  row.client = by_name(json.at("client"), ClientKind::standalone);
  row.verdict = by_name(json.at("verdict"), RegistrationVerdict::transport_unavailable);
  row.path = by_name(json.at("path"), RegistrationPath::off);
  row.reason = json.at("reason");
  row.advice = json.at("advice");
  const std::string cost = json.at("cost");
  const std::size_t measured = cost.find("; ");
  if (measured != std::string::npos) row.measured = cost.substr(measured + 2);
  return row;
}

}  // namespace

Result<StorageText> storage_text(const std::string& json) {
  try {
    const auto parsed = nlohmann::json::parse(json);
    std::vector<PoolRegistration> rows;
    for (const auto& row : parsed.at("registration")) rows.push_back(row_of(row));
    const std::string status = parsed.at("status");
    const std::string detail = parsed.at("detail");
    StorageText storage;
    storage.on = status == "on";
    storage.text = fmt::format("storage {}: {}{}\n", parsed.at("backend").get<std::string>(),
                               status, detail.empty() ? "" : " (" + detail + ")");
    if (!rows.empty()) storage.text += registration_text(rows);
    const std::size_t headline = storage.text.find("L3 is on\n");
    if (status == "failing" && headline != std::string::npos) {
      storage.text.replace(headline, std::string_view("L3 is on").size(),
                           "the pools are registered; L3 serves again when its calls succeed");
    }
    return storage;
  } catch (const std::exception& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("the answer does not say how storage is: {}", error.what()));
  }
}

}  // namespace hitide::cli
