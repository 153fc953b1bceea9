#pragma once
// Passes as people and PyTorch write them: "4F3" = forward of virtual stage 4, micro-batch 3; I, W, B likewise;
// "(4F3;1B0)" = an overlapped pair.
#include <string>

#include "sim/order.hpp"

namespace shardplan {

char pass_letter(PassKind);
/// "forward", "input_grad": as JSON keys and traces write it.
const char* pass_kind_name(PassKind);
std::string pass_text(const Pass&);

}  // namespace shardplan
