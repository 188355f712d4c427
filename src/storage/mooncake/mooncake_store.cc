#include "storage/mooncake/mooncake_store.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/log.h"
#include "base/mutex.h"
#include "storage/mooncake/codes.h"
#include "storage/mooncake/store_internal.h"
#include "storage/mooncake/transport.h"

namespace hitide {
namespace {

constexpr std::string_view kPackage = "mooncake-transfer-engine-non-cuda==0.3.13.post1";

Status with_install_line(const Status& status, const MooncakeOptions& options) {
  return Status(
      StatusCode::failed_precondition,
      fmt::format("mooncake: {}; install the store's client: {} -m pip install {} (or in a "
                  "virtual environment, whose interpreter the key python names), and "
                  "the system packages libibverbs1 libcurl4 libnuma1",
                  status.message(), options.python, kPackage));
}

std::uint64_t number(const std::map<std::string, std::string>& pairs, const char* name,
                     std::uint64_t otherwise) {
  const auto found = pairs.find(name);
  if (found == pairs.end()) return otherwise;
  const std::string& text = found->second;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : otherwise;
}

StatusCode meaning_of(AgentCall kind, std::int64_t code) {
  if (kind == AgentCall::exists && code == 0) return StatusCode::not_found;
  if (code >= 0) return StatusCode::ok;
  const StatusCode meaning = status_of_code(code);
  const bool removed = kind == AgentCall::remove && meaning == StatusCode::not_found;
  return removed ? StatusCode::ok : meaning;
}

}  // namespace

StatusCode code_for_rest(const Status& status) {
  switch (status.code()) {
    case StatusCode::deadline_exceeded:
    case StatusCode::resource_exhausted:
    case StatusCode::failed_precondition:
      return status.code();
    default:
      return StatusCode::unavailable;
  }
}

Status store_down_status(AgentCall kind, std::int64_t code) {
  return Status(StatusCode::unavailable,
                fmt::format("{}: the store's client answers {} ({}): its master cannot be reached",
                            to_string(kind), name_of_code(code), code));
}

Status passed_deadline(AgentCall kind, std::size_t left) {
  return Status(StatusCode::deadline_exceeded,
                fmt::format("{}: the deadline was up with {} items left", to_string(kind), left));
}

MooncakeStore::MooncakeStore(const MooncakeOptions& options)
    : options_(options),
      key_prefix_(options.extra_backend_tag.empty() ? "" : options.extra_backend_tag + "_"),
      regions_(kBounceRegion + 1) {}

MooncakeStore::~MooncakeStore() { close(kNoDeadline).ignore(); }

Result<std::unique_ptr<MooncakeStore>> MooncakeStore::open(const MooncakeOptions& options) {
  HITIDE_RETURN_IF_ERROR(validate(options));
  HITIDE_RETURN_IF_ERROR(check_transport(options));
  std::unique_ptr<MooncakeStore> store(new MooncakeStore(options));
  HITIDE_ASSIGN_OR_RETURN(store->bounce_, BounceMemory::create(options.bounce_bytes));
  MooncakeStore* self = store.get();
  store->agent_ = std::make_unique<AgentSupervisor>(
      store->agent_config(),
      [self](AgentSession& session) { return self->on_agent_start(session); },
      [self] { self->regions_.unmap_all(); });
  const Status first = store->agent_->first_try();
  if (first.code() == StatusCode::failed_precondition) return with_install_line(first, options);
  if (first.code() == StatusCode::invalid_argument) return first.with_context("mooncake");
  if (!first.ok()) {
    log_warning("mooncake_not_reached",
                {{options.standalone_storage ? "daemon" : "master",
                  options.standalone_storage ? options.client_server_address
                                             : options.master_server_address},
                 {"interpreter", options.python},
                 {"reason", first.to_string()}});
  }
  store->start_owner();
  return store;
}

ChildCommand MooncakeStore::python_command(std::vector<std::string> arguments) const {
  ChildCommand command{.program = options_.python, .arguments = std::move(arguments)};
  command.environment = options_.agent_environment;
  command.environment.emplace_back(
      "PYTHONPATH", options_.package_path.empty() ? HITIDE_PYTHON_DIR : options_.package_path);
  // Without it the working directory would be searched for modules first.
  command.environment.emplace_back("PYTHONSAFEPATH", "1");
  command.environment.emplace_back("PYTHONDONTWRITEBYTECODE", "1");
  command.environment_defaults = {
      {"MC_LOG_LEVEL", "ERROR"},
      {"MC_RPC_TIMEOUT_MS", "1000"},
      {"MC_TCP_PROGRESS_TIMEOUT_SEC", "2"},
      {"MC_STORE_CLIENT_SETUP_RETRIES", "1"},
      {"MC_TCP_ENABLE_CONNECTION_POOL", "1"},
  };
  return command;
}

void MooncakeStore::start_owner() {
  if (options_.global_segment_size == 0 || options_.standalone_storage) return;
  owner_ = std::make_unique<OwnerProcess>(
      python_command({"-m", "hitide.store_agent.owner", "--socket"}),
      FramePairs{
          {"local_hostname", options_.local_hostname},
          {"metadata_server", options_.metadata_server},
          {"protocol", options_.protocol},
          {"device_name", options_.device_name},
          {"master_server_address", options_.master_server_address},
          {"tenant_id", options_.tenant_id},
          {"global_segment_size", std::to_string(options_.global_segment_size)},
          {"enable_ssd_offload", options_.enable_ssd_offload ? "1" : "0"},
          {"ssd_offload_path", options_.ssd_offload_path},
      });
}

AgentConfig MooncakeStore::agent_config() const {
  AgentConfig config;
  config.command = python_command({"-m", "hitide.store_agent"});
  config.setup = {
      {"local_hostname", options_.local_hostname},
      {"metadata_server", options_.metadata_server},
      {"protocol", options_.protocol},
      {"device_name", options_.device_name},
      {"master_server_address", options_.master_server_address},
      {"tenant_id", options_.tenant_id},
  };
  if (options_.standalone_storage) {
    config.setup.emplace_back("standalone_storage", "1");
    config.setup.emplace_back("client_server_address", options_.client_server_address);
  }
  if (options_.master_metrics_port != 0) {
    config.setup.emplace_back("master_metrics_port", std::to_string(options_.master_metrics_port));
  }
  if (options_.check_server) config.setup.emplace_back("check_server", "1");
  config.lanes = {options_.query_lanes, options_.read_lanes, options_.write_lanes};
  config.start_limit = options_.start_limit;
  config.control_limit = options_.call_limit;
  return config;
}

StoreCapabilities MooncakeStore::capabilities() const {
  StoreCapabilities capabilities;
  capabilities.name = "mooncake";
  capabilities.object_bytes_max = options_.object_bytes_max;
  capabilities.key_bytes_max = kMooncakeKeyBytesMax;
  capabilities.batch_items_max = kMoveItemsMax;
  capabilities.persistent = true;
  capabilities.client = options_.standalone_storage ? ClientKind::standalone : ClientKind::embedded;
  return capabilities;
}

Duration MooncakeStore::limit_for(std::uint64_t bytes) const {
  const double share = static_cast<double>(bytes) / static_cast<double>(kMoveBytesMax);
  return options_.call_limit + from_seconds(to_seconds(options_.call_limit_per_64mib) * share);
}

// ---- exists and remove ------------------------------------------------------------------------

CallOutcome MooncakeStore::exists(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                  const CallOptions& options) {
  return ask(AgentCall::exists, keys, out, options);
}

CallOutcome MooncakeStore::remove(std::span<const std::string_view> keys, std::span<ItemResult> out,
                                  const CallOptions& options) {
  return ask(AgentCall::remove, keys, out, options);
}

Result<std::uint64_t> MooncakeStore::remove_prefix(std::string_view prefix,
                                                   const CallOptions& options) {
  if (!usable_key(prefix, kMooncakeKeyBytesMax)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("remove_prefix: a prefix of {} bytes; 1 to {} are taken",
                              prefix.size(), kMooncakeKeyBytesMax));
  }
  const CallGate::Pass pass(gate_);
  if (!pass) return Status(StatusCode::failed_precondition, "remove_prefix: the store is closed");
  HITIDE_ASSIGN_OR_RETURN(const std::shared_ptr<AgentSession> session, agent_->session());
  const std::string stored = stored_key(prefix);
  const std::string_view key = stored;
  const FrameBytes body = encode_keys({&key, 1});
  // The master looks at every key that it has.
  HITIDE_ASSIGN_OR_RETURN(
      const FrameBytes answer,
      session->call(AgentLane::write, {.call = AgentCall::remove_prefix, .body = body},
                    options.deadline, options_.start_limit));
  HITIDE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> codes, decode_results(answer, 1));
  if (codes.front() >= 0) return static_cast<std::uint64_t>(codes.front());
  if (means_store_down(codes.front())) {
    return store_down_status(AgentCall::remove_prefix, codes.front());
  }
  return Status(meaning_of(AgentCall::remove_prefix, codes.front()),
                fmt::format("remove_prefix: the store answered {}", codes.front()));
}

CallOutcome MooncakeStore::ask(AgentCall kind, std::span<const std::string_view> keys,
                               std::span<ItemResult> out, const CallOptions& options) {
  const CallGate::Pass pass(gate_);
  if (!pass) return refuse_call(out, StatusCode::failed_precondition, to_string(kind));
  if (keys.empty()) return {};
  if (is_past(options.deadline)) {
    return refuse_call(out, StatusCode::deadline_exceeded, to_string(kind));
  }
  std::vector<std::string> names;
  std::vector<ItemResult*> results;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    out[i] = {.code = StatusCode::invalid_argument};
    if (!usable_key(keys[i], kMooncakeKeyBytesMax)) continue;
    names.push_back(stored_key(keys[i]));
    results.push_back(&out[i]);
  }
  const auto count_failure = [&](const Status& status) {
    if (status.ok() || status.code() == StatusCode::deadline_exceeded) return;
    const MutexLock lock(stats_mutex_);
    ++stats_.failures;
  };
  const auto all_fail = [&](const Status& status) {
    count_failure(status);
    for (ItemResult* result : results) *result = {.code = code_for_rest(status)};
    return CallOutcome{.status = status.with_context(to_string(kind))};
  };
  const Result<std::shared_ptr<AgentSession>> session = agent_->session();
  if (!session.ok()) return all_fail(session.status());
  std::optional<KeyGuard::Hold> hold;
  if (kind == AgentCall::remove) {
    hold.emplace(keys_.take(names, KeyGuard::Use::exclusive, options.deadline));
    if (!*hold) return all_fail(passed_deadline(kind, names.size()));
  }
  Status status = ask_batches(**session, kind, names, results, options);
  count_failure(status);
  return {.status = std::move(status)};
}

Status MooncakeStore::ask_batches(AgentSession& session, AgentCall kind,
                                  std::span<const std::string> keys,
                                  std::span<ItemResult* const> results,
                                  const CallOptions& options) {
  const AgentLane lane = kind == AgentCall::exists ? AgentLane::query : AgentLane::write;
  Status status;
  for (std::size_t begin = 0; begin < keys.size(); begin += kAskItemsMax) {
    const std::size_t count = std::min(kAskItemsMax, keys.size() - begin);
    if (status.ok() && is_past(options.deadline)) {
      status = passed_deadline(kind, keys.size() - begin);
    }
    std::vector<std::int64_t> codes;
    if (status.ok()) {
      const auto part = keys.subspan(begin, count);
      const FrameBytes body = encode_keys(std::vector<std::string_view>(part.begin(), part.end()));
      const Result<FrameBytes> answer =
          session.call(lane, {.call = kind, .body = body}, options.deadline, options_.call_limit);
      Result<std::vector<std::int64_t>> decoded =
          answer.ok() ? decode_results(*answer, count) : answer.status();
      status = decoded.status();
      if (decoded.ok()) codes = std::move(decoded).value();
      if (status.ok() && kind == AgentCall::exists) {
        const MutexLock lock(stats_mutex_);
        ++counts_.exists_calls;
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      ItemResult& result = *results[begin + i];
      result = {.code = codes.empty() ? code_for_rest(status) : meaning_of(kind, codes[i])};
      if (!codes.empty() && status.ok() && means_store_down(codes[i])) {
        status = store_down_status(kind, codes[i]);
      }
    }
  }
  return status;
}

// ---- the rest ---------------------------------------------------------------------------------

StoreStats MooncakeStore::stats() const {
  const CallGate::Pass pass(gate_);
  std::map<std::string, std::string> told;
  if (pass) {
    const Result<std::shared_ptr<AgentSession>> session = agent_->session();
    if (session.ok()) {
      const Result<FrameBytes> answer = (*session)->control({.call = AgentCall::stats});
      if (answer.ok()) told = decode_pairs(*answer).value_or({});
    }
  }
  const MutexLock lock(stats_mutex_);
  stats_.objects = number(told, "objects", stats_.objects);
  stats_.bytes_used = number(told, "bytes_used", stats_.bytes_used);
  stats_.bytes_limit = number(told, "bytes_limit", stats_.bytes_limit);
  stats_.evicted_objects = number(told, "evicted_objects", stats_.evicted_objects);
  return stats_;
}

Status MooncakeStore::health() const { return agent_->session().status(); }

MooncakeCounts MooncakeStore::counts() const {
  MooncakeCounts counts;
  {
    const MutexLock lock(stats_mutex_);
    counts = counts_;
  }
  counts.agent_starts = agent_->starts();
  counts.regions_refused = regions_.refused();
  return counts;
}

int MooncakeStore::agent_pid() const {
  const Result<std::shared_ptr<AgentSession>> session = agent_->session();
  return session.ok() ? (*session)->process().pid() : -1;
}

Status MooncakeStore::wait_until_ready(TimePoint deadline) {
  return agent_->wait_until_ready(deadline);
}

Status MooncakeStore::close(TimePoint deadline) {
  if (!gate_.close(deadline)) {
    return Status(StatusCode::deadline_exceeded, "mooncake: calls are still in flight");
  }
  if (agent_) agent_->stop();
  if (owner_) owner_->stop();
  return {};
}

}  // namespace hitide
