#pragma once
// Words for number formats, as options and measured runs write them.
#include <string>

#include "hardware/cluster.hpp"

namespace shardplan {

/// bf16 | fp16 | fp32 | fp8 | fp8-delayed | fp8-tensor | fp8-row | fp8-block | mxfp8 | nvfp4; the first three fp8 words
/// are one scale per tensor. `where` names the option or place.
DataType parse_precision(const std::string& text, const std::string& where);

}  // namespace shardplan
