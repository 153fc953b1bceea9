#pragma once
// DeepSeek-V3's experts (arXiv 2412.19437, section 4.2): 256 routed of width 2,048, 8 a token, one shared.
#include "models/model.hpp"

inline shardplan::Moe deepseek_v3_experts() {
  shardplan::Moe moe;
  moe.experts = 256;
  moe.top_k = 8;
  moe.width = moe.shared_width = 2048;
  return moe;
}
