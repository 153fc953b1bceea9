#include "layouts/precision.hpp"

#include <vector>

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace shardplan {
namespace {

struct PrecisionWord {
  const char* text;
  DataType type;
};
constexpr PrecisionWord kPrecisions[] = {{"bf16", DataType::bf16},       {"fp16", DataType::fp16},
                                         {"fp32", DataType::fp32},       {"fp8", DataType::fp8},
                                         {"fp8-delayed", DataType::fp8}, {"fp8-tensor", DataType::fp8},
                                         {"fp8-row", DataType::fp8_row}, {"fp8-block", DataType::fp8_block},
                                         {"mxfp8", DataType::mxfp8},     {"nvfp4", DataType::nvfp4}};

}  // namespace

DataType parse_precision(const std::string& text, const std::string& where) {
  std::vector<std::string> known;
  for (const PrecisionWord& word : kPrecisions) {
    if (text == word.text) return word.type;
    known.emplace_back(word.text);
  }
  throw InputError(where, "unknown precision \"" + text.substr(0, 60) + "\"" + did_you_mean_or_list(text, known));
}

}  // namespace shardplan
