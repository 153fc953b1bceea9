// Seconds of dispatch and combine from the bytes of a layer's load.
//
// Datasheet: the busiest rank's bytes over the line rate of its NIC share and of its NVLink. Calibrated: hardware's
// exchange model prices a uniform layer of this shape; its traffic is scaled (its `imbalance`) to what this load puts
// on the busiest rank's link: skew, limits, drops and conventions all arrive that way. The two phases are pipelined:
// the total is the longer.
#include <algorithm>
#include <string>

#include "layouts/expert_layer.hpp"

namespace shardplan {

namespace {

Price at_rate(double bytes, double rate) {
  const double seconds = rate > 0 && bytes > 0 ? bytes / rate : 0;
  return {seconds, seconds, seconds, Basis::datasheet};
}

struct Exchange {
  const Cluster& cluster;
  const ExpertExchangeModel& model;
  const ExpertLoadQuestion& question;
  const ExpertLoad& load;

  double nic_rate() const { return cluster.network_bytes_per_second_per_gpu(); }

  ExpertExchange shape() const {
    ExpertExchange e;
    e.ranks = question.ep;
    e.ranks_per_domain = std::min(question.ranks_per_node, question.ep);
    e.nics_per_domain = cluster.node.gpus > 0 ? cluster.node.nics.value / cluster.node.gpus * e.ranks_per_domain : 1;
    e.tokens = question.tokens_per_rank;
    e.hidden = static_cast<int>(question.hidden);
    e.top_k = static_cast<int>(question.moe->top_k);
    e.experts = static_cast<int>(question.moe->experts);
    e.nodes_per_token = question.nodes_per_token;
    e.dispatch_bytes = question.dispatch_bytes_per_value;
    e.combine_bytes = question.combine_bytes_per_value;
    return e;
  }

  ExchangePrice ask(const ExpertExchange& e, bool combine) const {
    return combine ? model.combine(question.transport, e) : model.dispatch(question.transport, e);
  }

  /// The exchange with traffic scaled so that `bytes` stand where the model counts `modelled`.
  ExchangePrice scaled(ExpertExchange e, bool combine, double bytes, double modelled) const {
    if (!(modelled > 0) || !(bytes > 0)) return {};
    e.imbalance = bytes / modelled;
    return ask(e, combine);
  }

  ExchangePhase datasheet(double network_bytes, double nvlink_bytes) const {
    const Price far = at_rate(network_bytes, nic_rate());
    const Price near = at_rate(nvlink_bytes, cluster.gpu.nvlink_bytes_per_second.value);
    return {far.seconds, near.seconds, far.seconds >= near.seconds ? far : near};
  }

  /// The NVLink stage alone: the same exchange inside one node, scaled to these bytes.
  Price inside_node(bool combine, double nvlink_bytes) const {
    ExpertExchange e = shape();
    e.ranks = e.ranks_per_domain;
    e.nodes_per_token = 0;
    return scaled(e, combine, nvlink_bytes, ask(e, combine).nvlink_bytes).price;
  }

  ExchangePhase calibrated(bool combine, double network_bytes, double nvlink_bytes) const {
    ExchangePhase out;
    if (load.nodes <= 1) {
      out.total = inside_node(combine, nvlink_bytes);
      out.nvlink = out.total.seconds;
      return out;
    }
    const ExchangePrice base = ask(shape(), combine);
    const Price near = nvlink_bytes > 0 ? inside_node(combine, nvlink_bytes) : Price{};
    if (std::string(base.bound) == "nic") {
      const Price far = scaled(shape(), combine, network_bytes, base.nic_bytes).price;
      return {far.seconds, near.seconds, far.seconds >= near.seconds ? far : near};
    }
    // Bound by the hand-over inside the node: the network hides behind it.
    out.total = scaled(shape(), combine, nvlink_bytes, base.nvlink_bytes).price;
    out.nvlink = out.total.seconds;
    out.network = std::min(out.total.seconds, at_rate(network_bytes, nic_rate()).seconds);
    return out;
  }
};

}  // namespace

MoeExchange price_moe_exchange(const Cluster& cluster, Rates rates, const ExpertExchangeModel& model,
                               const ExpertLoadQuestion& question, const ExpertLoad& load) {
  MoeExchange out;
  const double far[2] = {load.dispatch_network * load.busiest_network, load.combine_network * load.busiest_network};
  const double near[2] = {load.dispatch_nvlink * load.busiest_nvlink, load.combine_nvlink * load.busiest_nvlink};
  const Exchange exchange{cluster, model, question, load};
  const std::string name(kExpertTransportNames[static_cast<std::size_t>(question.transport)]);
  if (rates == Rates::datasheet) {
    out.dispatch = exchange.datasheet(far[0], near[0]);
    out.combine = exchange.datasheet(far[1], near[1]);
    out.model = name + ", bytes of the busiest GPU over line rates, no latency";
    return out;
  }
  if (question.ep > 1) {
    out.dispatch = exchange.calibrated(false, far[0], near[0]);
    out.combine = exchange.calibrated(true, far[1], near[1]);
    // Low-latency kernels use all SMs for the short sending and receiving only; the transfer between needs none
    // (receive hooks).
    const bool low = question.transport == ExpertTransport::deepep_low_latency;
    out.sms_held = low ? 0 : exchange.ask(exchange.shape(), false).sms_held;
  }
  out.model = name + ", network and NVLink pipelined";
  return out;
}

}  // namespace shardplan
