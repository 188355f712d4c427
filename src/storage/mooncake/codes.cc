#include "storage/mooncake/codes.h"

#include <algorithm>
#include <array>

namespace hitide {
namespace {

struct Row {
  std::int64_t code;
  StatusCode status;
  std::string_view name;
};

constexpr std::array kRows = {
    Row{-200, StatusCode::resource_exhausted, "NO_AVAILABLE_HANDLE"},
    Row{-500, StatusCode::unavailable, "WRITE_FAIL"},
    Row{-600, StatusCode::internal, "INVALID_PARAMS"},
    Row{-601, StatusCode::unavailable, "ILLEGAL_CLIENT"},
    Row{-700, StatusCode::unavailable, "INVALID_WRITE"},
    Row{-701, StatusCode::not_found, "INVALID_READ"},
    Row{-702, StatusCode::not_found, "INVALID_REPLICA"},
    Row{-703, StatusCode::not_found, "REPLICA_IS_NOT_READY"},
    Row{-704, StatusCode::not_found, "OBJECT_NOT_FOUND"},
    Row{-705, StatusCode::already_exists, "OBJECT_ALREADY_EXISTS"},
    Row{-706, StatusCode::unavailable, "OBJECT_HAS_LEASE"},
    Row{-707, StatusCode::unavailable, "LEASE_EXPIRED"},
    Row{-710, StatusCode::not_found, "REPLICA_NOT_FOUND"},
    Row{-712, StatusCode::not_found, "REPLICA_IS_GONE"},
    Row{-713, StatusCode::not_found, "REPLICA_NOT_IN_LOCAL_MEMORY"},
    Row{-714, StatusCode::unavailable, "OBJECT_REPLICA_BUSY"},
    Row{-800, StatusCode::unavailable, "TRANSFER_FAIL"},
    Row{-801, StatusCode::data_loss, "CHECKSUM_MISMATCH"},
    Row{-900, StatusCode::unavailable, "RPC_FAIL"},
    Row{-901, StatusCode::unavailable, "RPC_TIMEOUT"},
    Row{-1700, StatusCode::resource_exhausted, "TENANT_QUOTA_EXCEEDED"},
    Row{-1701, StatusCode::resource_exhausted, "TENANT_NOT_REGISTERED"},
    Row{-1702, StatusCode::resource_exhausted, "TENANT_NOT_EMPTY"},
    Row{kItemUnmapped, StatusCode::internal, "UNMAPPED"},
    Row{kItemBadKey, StatusCode::invalid_argument, "BAD_KEY"},
    Row{kItemLengthMismatch, StatusCode::data_loss, "LENGTH_MISMATCH"},
    Row{kItemBadSize, StatusCode::invalid_argument, "BAD_SIZE"},
    Row{kNoMemory, StatusCode::resource_exhausted, "NO_MEMORY"},
    Row{kNotAdoptable, StatusCode::data_loss, "NOT_ADOPTABLE"},
    Row{kStoreAway, StatusCode::unavailable, "STORE_AWAY"},
};

const Row* find(std::int64_t code) {
  const auto* row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.code == code; });
  return row == kRows.end() ? nullptr : row;
}

}  // namespace

StatusCode status_of_code(std::int64_t code) {
  const Row* row = find(code);
  return row == nullptr ? StatusCode::unavailable : row->status;
}

std::string_view name_of_code(std::int64_t code) {
  const Row* row = find(code);
  return row == nullptr ? "code" : row->name;
}

bool means_store_down(std::int64_t code) {
  return code == -900 || code == -901 || code == -601 || code == kStoreAway;
}

}  // namespace hitide
