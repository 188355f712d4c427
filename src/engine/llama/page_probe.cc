#include "engine/llama/page_probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <llama.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "engine/llama/llama_device_internal.h"

namespace hitide {
namespace {

constexpr std::uint32_t kTail = 8;  // tokens computed behind the page

class Probe {
 public:
  Probe(llama_context& context, const ProbePlan& plan)
      : context_(context),
        plan_(plan),
        batch_(llama_batch_init(static_cast<std::int32_t>(plan.page_size + kTail), 0, 1)) {
    for (std::uint32_t i = 0; i < plan.page_size + kTail; ++i) {
      // Fixed, spread over the vocabulary.
      tokens_.push_back(static_cast<llama_token>((i * 7919u + 131u) % plan.vocabulary));
    }
  }
  ~Probe() {
    llama_memory_clear(llama_get_memory(&context_), true);
    llama_batch_free(batch_);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Result<ProbeReport> run() {
    const std::uint32_t page = plan_.page_size;
    const auto scratch = static_cast<std::int32_t>(plan_.physical_count) - 1;
    llama_memory_t memory = llama_get_memory(&context_);
    if (memory == nullptr) return Status(StatusCode::unimplemented, "the model has no cache");
    ProbeReport report;
    const TimePoint start = SystemClock::instance().now();
    HITIDE_RETURN_IF_ERROR(compute(0, 0, page));
    const double seconds = to_seconds(SystemClock::instance().now() - start);
    report.prefill_tokens_per_s = static_cast<double>(page) / std::max(seconds, 1e-6);

    const CellRange saved{.source = 0, .scratch = scratch, .begin = 0, .end = page};
    std::vector<std::byte> bytes(range_bytes(&context_, saved));
    if (bytes.empty() || read_range(&context_, saved, bytes) != bytes.size()) {
      return Status(StatusCode::unimplemented, "llama.cpp cannot save a page of this model");
    }
    HITIDE_RETURN_IF_ERROR(compute(0, page, page + kTail));
    const std::vector<float> expected = logits();

    CellRange restored = saved;
    restored.source = 1;
    if (!write_range(&context_, restored, bytes)) {
      return Status(StatusCode::unimplemented, "llama.cpp cannot restore a page of this model");
    }
    llama_memory_seq_cp(memory, 1, 2, 0, static_cast<llama_pos>(page));
    HITIDE_RETURN_IF_ERROR(compute(1, page, page + kTail));
    if (!same(logits(), expected)) {
      return Status(StatusCode::unimplemented,
                    "a restored page of this model gives other logits than a computed one");
    }
    for (std::uint32_t i = page; i < page + kTail; ++i) {
      HITIDE_RETURN_IF_ERROR(compute(2, i, i + 1));
    }
    report.same_logits_by_token = same(logits(), expected);

    report.page_bytes = bytes.size();
    Sha256 sha;
    sha.update(bytes.data(), bytes.size());
    std::array<std::uint8_t, 32> digest;
    sha.finish(digest);
    report.page_digest = to_hex(digest);
    return report;
  }

 private:
  // Logits of the last token only.
  Status compute(std::int32_t sequence, std::uint32_t begin, std::uint32_t end) {
    batch_.n_tokens = 0;
    for (std::uint32_t i = begin; i < end; ++i) {
      const std::int32_t at = batch_.n_tokens++;
      batch_.token[at] = tokens_[i];
      batch_.pos[at] = static_cast<llama_pos>(i);
      batch_.n_seq_id[at] = 1;
      batch_.seq_id[at][0] = sequence;
      batch_.logits[at] = i + 1 == end ? 1 : 0;
    }
    const std::int32_t code = llama_decode(&context_, batch_);
    if (code == 0) return ok_status();
    return Status(
        StatusCode::internal,
        fmt::format("llama.cpp could not compute {} tokens at start: code {}", end - begin, code));
  }

  std::vector<float> logits() const {
    const float* const values = llama_get_logits_ith(&context_, -1);
    if (values == nullptr) return {};
    return {values, values + plan_.vocabulary};
  }

  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return !a.empty() && a.size() == b.size() &&
           std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  llama_context& context_;
  const ProbePlan plan_;
  llama_batch batch_;
  std::vector<llama_token> tokens_;
};

// Dense attention in one unified cache, or with a sliding window beside it.
constexpr std::string_view kCopyable[] = {
    "llama",      "qwen",      "qwen2",    "qwen2moe", "qwen3",     "qwen3moe",  "gemma",
    "gemma2",     "gemma3",    "mistral3", "phi2",     "phi3",      "phimoe",    "starcoder",
    "starcoder2", "gpt2",      "gptneox",  "gptj",     "falcon",    "bloom",     "mpt",
    "stablelm",   "internlm2", "olmo",     "olmo2",    "olmoe",     "granite",   "granitemoe",
    "exaone",     "exaone4",   "smollm3",  "deepseek", "deepseek2", "command-r", "cohere2",
    "glm4",       "chatglm",   "baichuan", "minicpm",  "minicpm3",  "orion",     "xverse",
    "nemotron",   "gpt-oss",   "seed_oss", "ernie4_5", "apertus",   "arcee",     "bitnet",
    "plamo",      "codeshell", "dbrx",     "openelm",  "arctic",    "grok",      "refact",
};

// State that is not a range of cells, or a cache that aborts on a range copy.
constexpr std::string_view kNotCopyable[] = {
    "mamba",      "mamba2",         "rwkv6",     "rwkv6qwen2",    "rwkv7",       "arwkv7",
    "jamba",      "falcon-h1",      "plamo2",    "granitehybrid", "lfm2",        "lfm2moe",
    "nemotron_h", "nemotron_h_moe", "qwen3next", "kimi-linear",   "bailingmoe3", "kimi-k3",
    "glm5-next",  "qwen35",         "qwen35moe", "qwen4exp",      "deepseek4",   "minimax-01",
};

void child_main(int out, const std::string& model_path, const ContextPlan& plan,
                const ProbePlan& probe) {
  char verdict = 'n';
  auto model = load_llama_model(model_path, 0);
  if (model.ok()) {
    ProbePlan complete = probe;
    complete.vocabulary = static_cast<std::uint32_t>(
        llama_vocab_n_tokens(llama_model_get_vocab(model.value().get())));
    auto context = make_llama_context(*model.value(), plan);
    if (context.ok() && probe_pages(*context.value(), complete).ok()) verdict = 'y';
  }
  const ssize_t written = ::write(out, &verdict, 1);
  ::_exit(written == 1 ? 0 : 1);
}

// The child's one byte; 0 when it died or the time was up.
char read_verdict(int in, TimePoint deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - SystemClock::instance().now());
    if (left.count() <= 0) return 0;
    pollfd entry{.fd = in, .events = POLLIN, .revents = 0};
    const int ready =
        ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1000)));
    if (ready < 0 && errno != EINTR) return 0;
    if (ready <= 0) continue;
    char verdict = 0;
    return ::read(in, &verdict, 1) == 1 ? verdict : 0;
  }
}

}  // namespace

Result<ProbeReport> probe_pages(llama_context& context, const ProbePlan& plan) {
  return Probe(context, plan).run();
}

Copyability copyability_of(const std::string& architecture) {
  const auto listed = [&](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), architecture) != names.end();
  };
  if (listed(kNotCopyable)) return Copyability::no;
  return listed(kCopyable) ? Copyability::yes : Copyability::unknown;
}

Status probe_in_child(const std::string& model_path, const ContextPlan& context,
                      const ProbePlan& plan, Duration limit) {
  int ends[2];
  if (::pipe(ends) != 0) return errno_status(errno, "make a pipe for", "the model probe");
  UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return errno_status(errno, "fork", "the model probe");
  if (child == 0) child_main(out.get(), model_path, context, plan);  // does not return
  out.reset();
  const char verdict = read_verdict(in.get(), SystemClock::instance().now() + limit);
  ::kill(child, SIGKILL);  // over already, unless its time was up
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (verdict == 'y') return ok_status();
  return Status(StatusCode::unimplemented,
                verdict == 'n' ? "pages of this model could not be saved and restored"
                               : "llama.cpp crashed or hung when a page of this model was copied");
}

}  // namespace hitide
