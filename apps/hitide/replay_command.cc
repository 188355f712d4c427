// hitide replay: which tier would have served what of a recorded load.

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "argument_checks.h"
#include "cli.h"
#include "read_input.h"
#include "replay/replay.h"
#include "serve_arguments.h"
#include "spec/option_table.h"
#include "spec/storage_config.h"

namespace hitide::cli {
namespace {

constexpr const char* kCommand = "replay";
constexpr std::uint64_t kPagesMax = 1u << 30;
constexpr std::uint32_t kBlockTokens = 512;
constexpr std::uint64_t kDeviceTokens = 4u << 20;
// Options of `serve` that mean the same here.
constexpr std::array<std::string_view, 6> kRows = {
    "--page-size",
    "--hicache-write-policy",
    "--hicache-storage-prefetch-policy",
    "--hicache-storage-backend-extra-config",
    "--radix-eviction-policy",
    "--prefill-speed",
};

struct Arguments {
  std::string trace;
  std::uint32_t block_tokens = kBlockTokens;
  std::uint64_t device_tokens = kDeviceTokens;
  std::optional<std::uint64_t> host_tokens;
  std::optional<std::uint64_t> storage_tokens;
  double storage_latency_ms = 0.0;
  double storage_tokens_per_s = 0.0;
  std::string definition = "core";
  bool json = false;
};

Result<Trace> trace_of(const Arguments& arguments) {
  HITIDE_ASSIGN_OR_RETURN(const std::string text, read_input(arguments.trace));
  if (text.rfind("\xfd"
                 "7zXZ",
                 0) == 0 ||
      text.rfind("\x1f\x8b", 0) == 0) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: is compressed; unpack it: xz -dc FILE | hitide replay -, or "
                              "gzip -dc",
                              arguments.trace));
  }
  Result<Trace> trace = parse_trace(text, arguments.block_tokens);
  if (!trace.ok()) return trace.status().with_context(arguments.trace);
  return trace;
}

Result<std::uint64_t> pages_of(const char* option, std::uint64_t tokens, std::uint32_t page_size) {
  if (tokens / page_size > kPagesMax || (tokens > 0 && tokens < page_size)) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: {} tokens are {} pages of {}; accepted: 0, or 1..{} pages",
                              option, tokens, tokens / page_size, page_size, kPagesMax));
  }
  return tokens / page_size;
}

// Tiers and policies; `leaf` has one of each.
Status settle_leaf(const Arguments& arguments, const ServeOptions& serve) {
  const auto refuse = [](const char* option) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--lru-definition leaf is of one tier, and of lru: {}", option));
  };
  if (arguments.host_tokens.value_or(0) > 0) return refuse("not with --host-tokens");
  if (arguments.storage_tokens.value_or(0) > 0) return refuse("not with --storage-tokens");
  if (serve.cache.policy.eviction_policy != EvictionPolicy::lru) {
    return refuse("not with another --radix-eviction-policy");
  }
  return {};
}

Result<ReplayOptions> options_of(const Arguments& arguments, const GivenOptions& given,
                                 const Trace& trace) {
  ServeOptions serve;
  serve.cache.storage.backend = "memory";
  // Unless it is said: a block of the trace is a page.
  if (trace.block_tokens > 0) serve.engine.page_size = trace.block_tokens;
  for (const auto& [name, value] : given) {
    HITIDE_RETURN_IF_ERROR(set_option(option_table(), name, value, serve));
  }
  HITIDE_ASSIGN_OR_RETURN(const StorageConfigReport report, apply_storage_config({}, serve));
  log_storage_config(report);
  HITIDE_RETURN_IF_ERROR(validate(serve.cache));
  ReplayOptions options;
  options.page_size = serve.engine.page_size;
  options.policy = serve.cache.policy;
  options.prefill_tokens_per_s = serve.cache.prefill_tokens_per_s;
  options.storage_speed.latency = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::milli>(arguments.storage_latency_ms));
  options.storage_speed.pages_per_s = arguments.storage_tokens_per_s / options.page_size;
  const bool leaf = arguments.definition == "leaf";
  if (leaf) HITIDE_RETURN_IF_ERROR(settle_leaf(arguments, serve));
  options.definition = leaf ? LruDefinition::leaf : LruDefinition::core;
  const std::uint64_t host = arguments.host_tokens.value_or(leaf ? 0 : 4 * kDeviceTokens);
  const std::uint64_t storage =
      arguments.storage_tokens.value_or(leaf || host == 0 ? 0 : 16 * kDeviceTokens);
  if (storage > 0 && host == 0) {
    return Status(StatusCode::invalid_argument,
                  "--storage-tokens: storage is read into the host tier: give --host-tokens too");
  }
  HITIDE_ASSIGN_OR_RETURN(options.device_pages,
                          pages_of("--device-tokens", arguments.device_tokens, options.page_size));
  HITIDE_ASSIGN_OR_RETURN(options.host_pages, pages_of("--host-tokens", host, options.page_size));
  HITIDE_ASSIGN_OR_RETURN(options.storage_pages,
                          pages_of("--storage-tokens", storage, options.page_size));
  return options;
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

nlohmann::ordered_json share_json(const ReplayShare& share) {
  return {{"requests", share.requests},
          {"prompt_tokens", share.prompt_tokens},
          {"served_tokens", share.served_tokens},
          {"token_hit_rate", ratio(share.served_tokens, share.prompt_tokens)},
          {"ceiling_tokens", share.ceiling_tokens},
          {"ceiling", ratio(share.ceiling_tokens, share.prompt_tokens)}};
}

std::uint64_t pages_max(const ReplayOptions& options, Tier tier) {
  return tier == Tier::device ? options.device_pages
         : tier == Tier::host ? options.host_pages
                              : options.storage_pages;
}

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

std::string report_json(const ReplayOptions& options, const ReplayReport& report) {
  nlohmann::ordered_json out = share_json(report.all);
  out["refused_requests"] = report.refused_requests;
  out["span_s"] = seconds(report.span);
  out["storage_wait_s"] = seconds(report.storage_wait);
  out["page_size"] = options.page_size;
  out["lru_definition"] = options.definition == LruDefinition::leaf ? "leaf" : "core";
  for (const Tier tier : {Tier::device, Tier::host, Tier::storage}) {
    const auto i = static_cast<std::size_t>(tier);
    out["tiers"][to_string(tier)] = {{"pages", pages_max(options, tier)},
                                     {"served_tokens", report.served_tokens[i]},
                                     {"served_pages", report.served_pages[i]},
                                     {"evicted_pages", report.evicted_pages[i]}};
  }
  out["computed_tokens"] = nlohmann::ordered_json::object();
  for (int i = 0; i < kMissReasonCount; ++i) {
    const std::uint64_t tokens = report.missed_tokens[static_cast<std::size_t>(i)];
    if (tokens == 0) continue;
    out["computed_tokens"][std::string(to_string(static_cast<MissReason>(i)))] = tokens;
  }
  out["last_half"] = share_json(report.last_half);
  return out.dump();
}

std::string share_text(const char* name, const ReplayShare& share) {
  return fmt::format("{:<10} {} requests, {} prompt tokens: {:.4f} served; ceiling {:.4f}\n", name,
                     share.requests, share.prompt_tokens,
                     ratio(share.served_tokens, share.prompt_tokens),
                     ratio(share.ceiling_tokens, share.prompt_tokens));
}

std::string report_text(const ReplayOptions& options, const ReplayReport& report) {
  std::string out = fmt::format("{:<22}{:>14}{:>12}{:>9}{:>14}{:>12}\n", "", "tokens", "pages",
                                "of all", "tier's pages", "evicted");
  for (const Tier tier : {Tier::device, Tier::host, Tier::storage}) {
    const auto i = static_cast<std::size_t>(tier);
    out += fmt::format("{:<22}{:>14}{:>12}{:>8.2f}%{:>14}{:>12}\n",
                       fmt::format("served from {}", to_string(tier)), report.served_tokens[i],
                       report.served_pages[i],
                       100.0 * ratio(report.served_tokens[i], report.all.prompt_tokens),
                       pages_max(options, tier), report.evicted_pages[i]);
  }
  const std::uint64_t computed = report.all.prompt_tokens - report.all.served_tokens;
  out += fmt::format("{:<22}{:>14}{:>12}{:>8.2f}%\n", "computed", computed, "",
                     100.0 * ratio(computed, report.all.prompt_tokens));
  for (int i = 0; i < kMissReasonCount; ++i) {
    const std::uint64_t tokens = report.missed_tokens[static_cast<std::size_t>(i)];
    if (tokens == 0) continue;
    out += fmt::format("  {:<20}{:>14}{:>12}{:>8.2f}%\n",
                       std::string(to_string(static_cast<MissReason>(i))), tokens, "",
                       100.0 * ratio(tokens, report.all.prompt_tokens));
  }
  out += share_text("all", report.all) + share_text("last half", report.last_half);
  out += fmt::format("{:.1f} s of load; waited for storage {:.1f} s\n", seconds(report.span),
                     seconds(report.storage_wait));
  if (report.refused_requests > 0) {
    out += fmt::format("{} prompts did not fit on the device: their tokens are pool_full\n",
                       report.refused_requests);
  }
  return out;
}

int run_replay(const Arguments& arguments, const GivenOptions& given) {
  const Result<Trace> trace = trace_of(arguments);
  if (!trace.ok()) return complain(kCommand, std::string(trace.status().message()), kUsage);
  const Result<ReplayOptions> options = options_of(arguments, given, *trace);
  if (!options.ok()) return complain(kCommand, std::string(options.status().message()), kUsage);
  const Result<ReplayReport> report = replay(*trace, *options);
  if (!report.ok()) return complain(kCommand, std::string(report.status().message()), kFailed);
  if (arguments.json) {
    std::printf("%s\n", report_json(*options, *report).c_str());
  } else {
    std::fputs(report_text(*options, *report).c_str(), stdout);
  }
  return printed(kCommand);
}

}  // namespace

void add_replay(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand(
      kCommand, "Say which tier would have served what of a recorded load; no model is needed.");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("trace", arguments->trace, "JSON lines, one request each; -: standard input.")
      ->check(not_empty)
      ->required()
      ->type_name("TRACE");
  command
      ->add_option("--block-tokens", arguments->block_tokens,
                   "Tokens that one of the trace's hash_ids stands for.")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20))
      ->type_name("TOKENS");
  const auto size = CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 40);
  command->add_option("--device-tokens", arguments->device_tokens, "Size of the device tier.")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->type_name("TOKENS");
  command
      ->add_option("--host-tokens", arguments->host_tokens,
                   "Size of the host tier; 0: none, and no storage. Default: 16777216, leaf: 0.")
      ->check(size)
      ->type_name("TOKENS");
  command
      ->add_option("--storage-tokens", arguments->storage_tokens,
                   "Size of storage; 0: none. Default: 67108864, leaf: 0.")
      ->check(size)
      ->type_name("TOKENS");
  command
      ->add_option("--storage-latency", arguments->storage_latency_ms,
                   "How long each call of storage takes, in milliseconds of the trace's time.")
      ->check(a_number)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3.6e6))
      ->type_name("MS");
  command
      ->add_option("--storage-speed", arguments->storage_tokens_per_s,
                   "Tokens that storage reads, and writes, in a second; 0: no limit.")
      ->check(a_number)
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e12))
      ->type_name("TOKENS/S");
  command
      ->add_option("--lru-definition", arguments->definition,
                   "core: what a server would serve. leaf: what simulators of caches count: pages "
                   "that are not full too, up to whole prompts, on one tier.")
      ->capture_default_str()
      ->check(CLI::IsMember({"core", "leaf"}))
      ->type_name("NAME");
  command->add_flag("--json", arguments->json, "Print one JSON object.");
  auto given = add_table_options(*command, kRows);
  command->footer("--page-size is --block-tokens unless it is given (traces of texts: 32).");
  command->callback([&run, arguments, given] {
    run = [arguments, given] { return run_replay(*arguments, *given); };
  });
}

}  // namespace hitide::cli
