// TextStream: turns the bytes of generated tokens into text that may be sent: whole UTF-8
// characters, and nothing that might still become part of a stop string.
//
// Bytes that are no UTF-8 become U+FFFD. Threading: one thread per object.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hitide {

class TextStream {
 public:
  // Empty stop strings are ignored. `keep_stop`: the one that is found comes out too.
  explicit TextStream(std::vector<std::string> stops, bool keep_stop = false);

  // Takes the bytes of one more token; returns what may be sent now. Once a stop string is complete
  // stopped() is true, the text up to it has been returned, and nothing more comes out.
  std::string push(std::string_view bytes);
  bool stopped() const { return stopped_; }
  // The generation has ended: returns what was held back.
  std::string finish();

 private:
  std::size_t held_for_stops() const;

  std::vector<std::string> stops_;
  const bool keep_stop_;
  std::string pending_;  // not sent yet
  bool stopped_ = false;
};

// Bytes at the end of `text` that begin a UTF-8 character and wait for the rest of it; 0 to 3.
std::size_t incomplete_utf8_tail(std::string_view text);
// `text` with each maximal run of bytes that is no UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace hitide
