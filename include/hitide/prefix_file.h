// A prefix as one file: the stored pages of a prompt, of all pools, to be carried from one store to
// another. docs/formats/export.md; `hitide export` and `hitide import`.
//
// A file is believed in nothing: before anything is imported, all of it is read, and every page is
// verified as one that comes from a store is. A file that is damaged in any byte, cut off, or made
// to mislead is refused and imports nothing.
//
// Threading: free functions, safe from any thread. They block for I/O.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <hitide/model_spec.h>
#include <hitide/options.h>
#include <hitide/result.h>
#include <hitide/types.h>

namespace hitide {

inline constexpr std::uint16_t kPrefixFileVersion = 1;

// What the file says of itself.
struct PrefixFileHead {
  ModelSpec model = {};
  Digest identity = {};            // of the model: the pages' namespace in a store
  std::vector<PageKey> keys = {};  // [pages], from position 0 on
  std::uint64_t file_bytes = 0;
};

struct PrefixExport {
  std::uint64_t pages = 0;    // exported: the longest prefix that the store can restore
  std::uint64_t objects = 0;  // in the file: a page has one of each pool
  std::uint64_t file_bytes = 0;
};

struct PrefixImport {
  std::uint64_t pages = 0;
  std::uint64_t objects_written = 0;
  std::uint64_t objects_present = 0;  // the store had them already
};

// Writes the pages that the store holds of the prefix into a file, and nothing of what lies behind
// the first page that is missing. keys: [n] of page_hashes(). model: of the server that stored
// them; its namespace and pools are looked for. A file store is only read, also while a server has
// it open. A regular file appears at `path` when it is whole, and takes the place of one that is
// there; a device or pipe is written to. Memory: 16 pages.
//
// invalid_argument: a model that does not validate, no keys, a backend that keeps nothing.
// not_found: no store, or it holds not even the first page. unavailable: what was there went
// meanwhile, or the store does not answer. data_loss: a page does not verify. Else as the system
// says of the file.
Result<PrefixExport> export_prefix(const StorageOptions& storage, const ModelSpec& model,
                                   std::span<const PageKey> keys, const std::string& path);

// Reads and checks the file's head alone. Cost: 32 bytes a page. Errors: as of import_prefix().
Result<PrefixFileHead> read_prefix_head(const std::string& path);

// Verifies the file as a whole, then stores its pages, from the first to the last, each page's side
// pools before its anchor; what the store has already stays as it is. The file store is opened for
// writing, and created where it is missing. Reads the file twice. Memory: 64 MiB, or one page.
//
// data_loss: the file is damaged or cut off, and nothing was imported. failed_precondition: it is
// of a newer version; a store that is in use or cannot be used. invalid_argument: no file of this
// kind. resource_exhausted: the store did not keep all of it. Else as the system says.
Result<PrefixImport> import_prefix(const std::string& path, const StorageOptions& storage);

}  // namespace hitide
