#pragma once
// Schedules as PyTorch pipelining writes them (torch.distributed.pipelining): one row a rank, cells in execution order.
//   <stage><F|I|W|B><micro-batch>, (3F2;0B0)OVERLAP_F_B; an empty cell is an idle slot.
// With messages also <stage><SEND_F|RECV_F|SEND_B|RECV_B><micro-batch> and <stage><UNSHARD|RESHARD|REDUCE_GRAD>.
#include <string>
#include <string_view>

#include "sim/order.hpp"

namespace shardplan {

enum class CsvKind { compute_only, compute_comms };

/// InputError("--write-order", ...) for orders with more than one chain of stages: the format has no word for them.
std::string pytorch_csv(const Order&, CsvKind);

/// Reads either kind. Stages are one chain, 0 the first; which rank holds a stage is inferred from the rows. Messages
/// are read, checked to be those that the passes need, and otherwise derived anew by a replay. `where` names the file.
/// InputError with row and column: a cell that is not wholly understood ("0F1garbage"), an empty cell in a list with
/// messages, a stage on two ranks; and as PassIndex where passes are missing, doubled or out of order.
Order parse_pytorch_csv(std::string_view text, const std::string& where);

}  // namespace shardplan
