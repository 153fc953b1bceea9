#pragma once
// Messages between processes of Open MPI: rank r of a step is process r of the job; processes beyond a step's ranks
// run nothing of it.
//
// A message is two: its floats, sent inside the sender's clock (copy_in), and its stamp, sent by ring(). A receiver
// polls for the stamp, which is nobody's work, and takes the floats inside its own clock. Long messages need the sender
// inside MPI to move, so some of their time is the receiver's that a mailbox would not charge.
#include "hardware/measure/transport.hpp"

namespace shardplan {

/// Every process of the job calls it at the same place. patience_s: so long a message may be overdue before the step
/// counts as stuck.
std::unique_ptr<RankTransport> make_mpi_transport(std::vector<ChannelEnds>, int ranks, double patience_s);

}  // namespace shardplan
