#pragma once
// The whiteboard's arithmetic: bytes on the busiest wire over its line rate per direction; no latency, no efficiency.
#include "hardware/collectives.hpp"

namespace shardplan {

/// all-reduce 2(n-1)/n S / bw, all-gather and reduce-scatter (n-1)/n S / bw, broadcast and send-recv S / bw, with bw
/// the NVLink (or PCIe) rate of one GPU inside a domain, and the group's NICs in one domain (never above NVLink) where
/// it crosses. all-to-all across: the slower of k S (n-k)/n over the domain's NICs and S (k-1)/n over NVLink, k members
/// a domain, both at once. On a mesh of point-to-point links (xGMI), n of d GPUs reach (n-1)/(d-1) of a GPU's rate.
double datasheet_seconds(const Cluster&, Collective, double bytes, const GroupShape&);
/// One GPU's rate inside its domain, bytes/s per direction.
double domain_bytes_per_second(const Cluster&, int ranks);

}  // namespace shardplan
