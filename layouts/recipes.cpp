#include "layouts/recipes.hpp"

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace shardplan {

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> table = {
      {"megatron",
       "Megatron-LM docs, distributed optimizer: 6 + 12/d bytes (BF16 weight, FP32 gradient, FP32 master and Adam "
       "moments)",
       2, 4, 12, 2, true, true, true},
      {"megatron-plain", "Megatron-LM without the distributed optimizer: 18 bytes on every rank", 2, 4, 12, 2, false,
       true, true},
      {"whiteboard", "ZeRO paper (arXiv 1910.02054) section 3.1: 2 + 2 + 12 bytes, gradients in 16 bits", 2, 2, 12, 2,
       true, false, false},
      {"fsdp-fp32", "PyTorch FSDP2 mixed precision: FP32 weights, gradients and moments, all sharded; BF16 gathered", 4,
       4, 8, 2, true, true, false},
      {"bf16-pure", "BF16 weight, gradient and moments, no master copy", 2, 2, 4, 2, true, false, false},
      {"deepseek-v3",
       "DeepSeek-V3 report (arXiv 2412.19437) section 3.3.2: FP32 master weight and gradient, BF16 moments", 2, 4, 8, 2,
       true, true, true},
      {"deepspeed-fp16",
       "DeepSpeed ZeRO 1 in FP16: 16-bit gradients and their flattened copy for the reduction; sharded: FP32 master, "
       "moments and "
       "the FP32 gradient of the partition",
       2, 4, 16, 2, true, false, false},
      {"deepspeed-bf16",
       "DeepSpeed BF16 optimizer: 16-bit gradients and their flattened copy, FP32 accumulators; sharded: FP32 master "
       "and moments",
       2, 8, 12, 2, true, true, false},
      {"fp32", "FP32 weight, gradient and both Adam moments, no copies: 16 bytes", 4, 4, 8, 4, true, true, false},
      {"fp32-gradients", "FP32 weight and gradient, no optimizer: what `measure --backend cpu` keeps", 4, 4, 0, 4, true,
       true, false},
      {"nanotron", "nanotron: BF16 weight, FP32 gradient accumulator, FP32 master and moments", 2, 4, 12, 2, true, true,
       true},
  };
  return table;
}

const Recipe& find_recipe(std::string_view name, const std::string& where) {
  std::vector<std::string> known;
  for (const Recipe& r : recipes()) {
    if (r.name == name) return r;
    known.push_back(r.name);
  }
  throw InputError(where, "unknown recipe \"" + std::string(name) + "\"" + did_you_mean_or_list(name, known));
}

}  // namespace shardplan
