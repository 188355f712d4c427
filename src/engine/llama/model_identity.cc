#include "engine/llama/model_identity.h"

#include <array>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <llama.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mutex.h"

namespace hitide {
namespace {

// Size and change time beside the path, so that a file replaced in place is read again.
std::string file_version(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return fmt::format("{}:{}:{}:{}.{}", path, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

Result<std::string> cached_sha256(const std::string& path) {
  static Mutex mutex;
  static std::map<std::string, std::string> digests;
  const std::string version = file_version(path);
  {
    const MutexLock lock(mutex);
    const auto found = digests.find(version);
    if (found != digests.end()) return found->second;
  }
  HITIDE_ASSIGN_OR_RETURN(std::string digest, file_sha256(path));
  const MutexLock lock(mutex);
  digests[version] = digest;
  return digest;
}

// A model may be split over several files, of which the first one is named.
Result<std::string> weights_digest(const std::string& path, std::uint32_t files) {
  if (files <= 1) return cached_sha256(path);
  std::vector<char> prefix(path.size() + 1);
  const auto count = static_cast<int>(files);
  if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, count) <= 0) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{} is not the first of its {} files", path, files));
  }
  Sha256 sha;
  for (int i = 0; i < count; ++i) {
    std::vector<char> part(path.size() + 32);
    llama_split_path(part.data(), part.size(), prefix.data(), i, count);
    HITIDE_ASSIGN_OR_RETURN(const std::string digest, cached_sha256(part.data()));
    sha.update(digest);
  }
  std::array<std::uint8_t, 32> digest;
  sha.finish(digest);
  return to_hex(digest);
}

}  // namespace

Result<ModelSpec> make_model_spec(const IdentityInputs& in) {
  ModelSpec spec;
  spec.model_name = in.model_name;
  HITIDE_ASSIGN_OR_RETURN(spec.weights_digest, weights_digest(in.model_path, in.facts.split_files));
  const auto add = [&](std::string_view name, const auto& value) {
    spec.numerics.push_back(fmt::format("{}={}", name, value));
  };
  // Q8_0 gives the same bits for any batch shape and number of threads; the others do not.
  const bool any_shape = in.kv_type == KvType::q8_0;
  add("engine", "llama.cpp");
  add("engine_build", HITIDE_LLAMA_COMMIT);
  add("state_format", LLAMA_STATE_SEQ_VERSION);
  add("state_scratch_id", in.scratch_id);
  add("kv_type", to_string(in.kv_type));
  add("flash_attention", 1);
  add("rope", "as_in_model");
  add("rope_scaling", in.facts.rope_scaling);
  // Some scalings choose their factors by the size of the context.
  if (in.facts.rope_scaling != "none") add("context", in.cells);
  add("micro_batch_class", any_shape             ? "any"
                           : in.micro_batch < 64 ? "below_64"
                                                 : fmt::format("{}", in.micro_batch));
  add("threads_class", any_shape ? std::string("any") : fmt::format("{}", in.threads));
  add("gpu_layers", in.gpu_layers);
  add("backend", llama_print_system_info());
  if (in.gpu_layers > 0) {
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
      ggml_backend_dev_t device = ggml_backend_dev_get(i);
      if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) continue;
      add("device", fmt::format("{} {}", ggml_backend_dev_name(device),
                                ggml_backend_dev_description(device)));
    }
  }
  // A GPU need not give the same bits in every run, and then nothing stored would be found again.
  if (in.gpu_layers == 0) add("page_of_fixed_tokens", in.probe.page_digest);

  PoolSpec pool;
  pool.name = "kv";
  pool.kind = PoolKind::packed;
  pool.page_size = in.page_size;
  pool.page_bytes = in.probe.page_bytes;
  pool.layers = in.layers;
  pool.heads = in.kv_heads;
  pool.head_dim = in.facts.key_dim;
  pool.dtype = to_string(in.kv_type);
  spec.pools.push_back(std::move(pool));
  HITIDE_RETURN_IF_ERROR(validate(spec));
  return spec;
}

}  // namespace hitide
