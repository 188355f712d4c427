// MooncakeOptions: how to reach a Mooncake store. The first part are the keys that operators know
// (extra configuration, MOONCAKE_* variables), with the same defaults and units. Sizes are bytes.
//
// Threading: values. What is given to a store is copied.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <hitide/types.h>

namespace hitide {

struct MooncakeOptions {
  std::string local_hostname = "localhost";        // what peers call this machine
  std::string metadata_server = "P2PHANDSHAKE";    // or etcd://, redis://, http:// ...
  std::uint64_t global_segment_size = 4ull << 30;  // bytes that this machine gives to the store
  std::string protocol = "rdma";                   // "rdma" or "tcp"
  std::string device_name = {};                    // rdma: devices, separated by commas
  std::string master_server_address = {};          // host:port
  // A thin client of a store daemon of this machine, which must be given then. The daemon has
  // settings of its own: of those above only the master's address is used, to ask it for numbers.
  bool standalone_storage = false;
  std::string client_server_address = {};    // host:port
  std::uint16_t master_metrics_port = 9003;  // on the master's host; 0: do not ask
  std::string tenant_id = "default";
  std::string extra_backend_tag = {};  // goes in front of every key
  bool group_semantics = true;         // objects of one page share a group: evicted together
  bool enable_ssd_offload = false;     // the owner's: evicted objects go to its disk
  std::string ssd_offload_path = {};   // where; empty: the store's default
  // Set-up waits until the master's port master_metrics_port answers.
  bool check_server = false;

  // Ours.
  std::string python = "python3";  // an interpreter that has the package; looked up in PATH
  std::string package_path = {};   // folder of our Python package; empty: that of the build
  std::vector<std::pair<std::string, std::string>> agent_environment = {};
  Duration call_limit = std::chrono::seconds(3);            // of one call of the client
  Duration call_limit_per_64mib = std::chrono::seconds(1);  // more, by the bytes it moves
  Duration start_limit = std::chrono::seconds(10);          // of set-up
  Duration adopt_limit_per_gib = std::chrono::seconds(30);  // standalone: of taking over memory
  std::uint32_t query_lanes = 2;                            // calls in flight by kind
  std::uint32_t read_lanes = 2;
  std::uint32_t write_lanes = 2;
  std::uint64_t object_bytes_max = 64ull << 20;
  std::uint64_t bounce_bytes = 64ull << 20;  // shared memory for bytes from elsewhere
  friend bool operator==(const MooncakeOptions&, const MooncakeOptions&) = default;
};

}  // namespace hitide
