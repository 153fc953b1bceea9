#pragma once
// What an option of a layout needs of the machine: kernels that exist for some GPUs, links and networks only. Data with
// its sources in data/machine_needs.json.
#include <optional>
#include <string>

#include "hardware/cluster.hpp"
#include "layouts/layout.hpp"

namespace shardplan {

/// Why a word of this layout does not run on this machine ("transport=deepep needs infiniband or roce between nodes,
/// not efa"), or nothing. Looks at the words that the layout states, not at what a stack does by itself. The layout
/// must be legal.
std::optional<std::string> refused_by_machine(const Layout&, const Cluster&);

/// The same of overlapped tensor-parallel communication alone, whichever layout asks.
bool overlaps_tensor_parallel(const Cluster&);

}  // namespace shardplan
