#pragma once
// Passes as people and PyTorch write them: "4F3" = forward of virtual stage 4, micro-batch 3; I, W, B likewise;
// "(4F3;1B0)" = an overlapped pair.
#include <string>

#include "sim/order.hpp"

namespace shardplan {

char pass_letter(PassKind);
std::string pass_text(const Pass&);

}  // namespace shardplan
