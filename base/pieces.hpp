#pragma once
// A text cut at every separator: one piece more than there are separators, pieces may be empty.
#include <string_view>
#include <vector>

namespace shardplan {

/// The pieces refer to `text`.
inline std::vector<std::string_view> pieces_of(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (std::size_t from = 0;;) {
    const std::size_t to = text.find(separator, from);
    out.push_back(text.substr(from, to - from));
    if (to == std::string_view::npos) return out;
    from = to + 1;
  }
}

}  // namespace shardplan
