#include "sim/pass_text.hpp"

namespace shardplan {

char pass_letter(PassKind kind) {
  switch (kind) {
    case PassKind::forward:
      return 'F';
    case PassKind::backward:
      return 'B';
    case PassKind::input_grad:
      return 'I';
    case PassKind::weight_grad:
      return 'W';
    case PassKind::overlapped:
      return 'O';
  }
  return '?';
}

const char* pass_kind_name(PassKind kind) {
  switch (kind) {
    case PassKind::forward:
      return "forward";
    case PassKind::backward:
      return "backward";
    case PassKind::input_grad:
      return "input_grad";
    case PassKind::weight_grad:
      return "weight_grad";
    case PassKind::overlapped:
      return "overlapped";
  }
  return "";
}

std::string pass_text(const Pass& pass) {
  if (pass.kind == PassKind::overlapped) {
    return "(" + std::to_string(pass.stage) + "F" + std::to_string(pass.microbatch) + ";" +
           std::to_string(pass.stage2) + "B" + std::to_string(pass.microbatch2) + ")";
  }
  return std::to_string(pass.stage) + pass_letter(pass.kind) + std::to_string(pass.microbatch);
}

}  // namespace shardplan
