// `hitide warm`, `export` and `import` of a build without llama.cpp.

#include "prompt_engine.h"
#include "warm_target.h"

namespace hitide::cli {

Result<std::unique_ptr<WarmTarget>> open_warm_engine(const GivenOptions& /*given*/) {
  return Status(StatusCode::invalid_argument,
                "this build has no engine (HITIDE_BUILD_SERVE=OFF): give --url");
}

Result<LocatedPrompt> locate_prompt(const GivenOptions& /*given*/, const NamedPrompt* /*prompt*/) {
  return Status(StatusCode::invalid_argument,
                "--model-path: this build has no engine (HITIDE_BUILD_SERVE=OFF)");
}

}  // namespace hitide::cli
