// Seconds of dispatch and combine from the bytes of a layer's load.
//
// Merging transports (DeepEP, HybridEP): a token goes once to each node over the network, to the GPU in the sender's
// place there, and from it over NVLink to the GPUs that host its experts; combine comes back the same way, summed
// inside the node first. So the network phase is an all-to-all among the GPUs of one place (one a node, each with its
// NIC), the NVLink phase one among the GPUs of a node, and the two are pipelined. Plain NCCL: one all-to-all of every
// copy over all ranks. Source: DeepEP, github.com/deepseek-ai/DeepEP (normal kernels); NCCL's all-to-all as grouped
// sends and receives.
#include <algorithm>

#include "layouts/expert_layer.hpp"

namespace shardplan {

namespace {

Price at_rate(double bytes, double rate) {
  const double seconds = rate > 0 && bytes > 0 ? bytes / rate : 0;
  return {seconds, seconds, seconds, Basis::datasheet};
}

/// All-to-all of `sent` bytes that leave a rank, among `ranks`: the collective counts the rank's own part too.
Price all_to_all(const NetworkModel& network, double sent, int ranks, int per_domain, double nics) {
  if (ranks <= 1 || sent <= 0) return {};
  const double bytes = sent * ranks / (ranks - 1);
  return network.collective(Collective::all_to_all, bytes, {ranks, per_domain, nics}).price;
}

struct Links {
  const Cluster& cluster;
  Rates rates;
  const NetworkModel& network;
  const ExpertLoadQuestion& question;
  const ExpertLoad& load;

  int per_node() const { return std::min(question.ranks_per_node, question.ep); }
  double nics_per_rank() const { return cluster.node.gpus > 0 ? cluster.node.nics.value / cluster.node.gpus : 1; }

  Price network_phase(double bytes) const {
    bytes *= load.busiest_network;
    if (rates == Rates::datasheet) return at_rate(bytes, cluster.network_bytes_per_second_per_gpu());
    return all_to_all(network, bytes, load.nodes, 1, nics_per_rank());
  }
  Price nvlink_phase(double bytes) const {
    bytes *= load.busiest_nvlink;
    if (rates == Rates::datasheet) return at_rate(bytes, cluster.gpu.nvlink_bytes_per_second.value);
    return all_to_all(network, bytes, per_node(), per_node(), nics_per_rank() * per_node());
  }

  ExchangePhase phase(double network_bytes, double nvlink_bytes) const {
    const Price far = network_phase(network_bytes), near = nvlink_phase(nvlink_bytes);
    ExchangePhase out;
    out.network = far.seconds;
    out.nvlink = near.seconds;
    out.total = far.seconds >= near.seconds ? far : near;
    if (far.seconds > 0 && near.seconds > 0) out.total.basis = weaker(far.basis, near.basis);
    return out;
  }
};

}  // namespace

MoeExchange price_moe_exchange(const Cluster& cluster, Rates rates, const NetworkModel& network,
                               const ExpertLoadQuestion& question, const ExpertLoad& load) {
  const Links links{cluster, rates, network, question, load};
  MoeExchange out;
  out.dispatch = links.phase(load.dispatch_network, load.dispatch_nvlink);
  out.combine = links.phase(load.combine_network, load.combine_nvlink);
  out.model = rates == Rates::datasheet ? "bytes of the busiest GPU over line rates, no latency"
                                        : "all-to-all in each place of the nodes, then in the node, pipelined";
  return out;
}

}  // namespace shardplan
