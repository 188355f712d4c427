#include "storage/mooncake/transport.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace hitide {

Status check_transport(const MooncakeOptions& options) {
  if (options.protocol != "rdma" || options.standalone_storage) return {};
  const std::filesystem::path devices("/sys/class/infiniband");
  std::error_code error;
  std::string_view names = options.device_name;
  std::string_view missing;
  if (names.empty()) {
    const std::filesystem::directory_iterator found(devices, error);
    if (!error && found != std::filesystem::directory_iterator()) return {};
    missing = "any";
  }
  while (!names.empty() && missing.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    if (!std::filesystem::exists(devices / name, error)) missing = name;
  }
  if (missing.empty()) return {};
  return Status(StatusCode::failed_precondition,
                fmt::format("mooncake: protocol rdma with device_name '{}', but this machine does "
                            "not have {}; without RDMA use MOONCAKE_PROTOCOL=tcp",
                            options.device_name, missing));
}

}  // namespace hitide
