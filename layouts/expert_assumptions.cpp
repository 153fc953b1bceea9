// What each convention of a whiteboard estimate is worth: the layer priced anew with one of them changed.
#include <algorithm>

#include "base/number_text.hpp"
#include "layouts/expert_layer.hpp"

namespace shardplan {

namespace {

/// The whiteboard's conventions: nothing is local, the node limit is reached, k copies cross NVLink, line rates and
/// peaks.
MoeLayerQuestion whiteboard(const AssumptionInputs& in) {
  MoeLayerQuestion q = in.question;
  q.load.count_own_node = q.load.every_copy = true;
  q.rates = Rates::datasheet;
  q.kernels = in.datasheet_kernels;
  q.exchange = in.datasheet_exchange;
  q.waves = 1;
  q.shared = true;
  return q;
}

Assumption line(std::string what, const MoeLayerTimes& t) {
  return {std::move(what), t.network() + t.nvlink(), t.compute(), t.comm_over_compute()};
}

Assumption serial(std::string what, const MoeLayerQuestion& q) { return line(std::move(what), price_moe_layer(q)); }

Assumption pipelined(std::string what, const MoeLayerQuestion& q) {
  const MoeLayerTimes t = price_moe_layer(q);
  const double moved = t.exchange.dispatch.total.seconds + t.exchange.combine.total.seconds;
  return {std::move(what), moved, t.compute(), moved / t.compute()};
}

bool has_scales(const ExpertLoadQuestion& q) {
  return q.dispatch_bytes_per_value > 1 && q.dispatch_bytes_per_value < 2;
}

}  // namespace

std::vector<Assumption> assumption_worth(const AssumptionInputs& in) {
  const MoeLayerQuestion base = whiteboard(in);
  std::vector<Assumption> out{
      serial("whiteboard: line rates, dense peak, nothing local, phases one after the other", base)};
  MoeLayerQuestion q = base;
  q.shared = false;
  if (base.load.moe->shared_width > 0) out.push_back(serial("shared expert left out", q));

  q = base;
  q.load.count_own_node = false;
  out.push_back(serial("own node's and own GPU's traffic not counted", q));

  q = base;
  q.load.every_copy = false;
  out.push_back(serial("expected distinct nodes and GPUs (" + text_of_number(expert_load(q.load).distinct_nodes, 3) +
                           " and " + text_of_number(expert_load(q.load).distinct_ranks, 3) +
                           ") instead of the limit and k copies",
                       q));

  q = base;
  if (has_scales(q.load)) {
    q.load.dispatch_bytes_per_value = 1;
    out.push_back(serial("FP8 payload without its scales", q));
  } else if (q.load.dispatch_bytes_per_value == 1) {
    q.load.dispatch_bytes_per_value = 1 + 4.0 / 128;
    out.push_back(serial("FP8 with 4 bytes of scale per 128 values", q));
  }

  out.push_back(pipelined("network and NVLink phases pipelined (the longer of each direction)", base));

  MoeLayerQuestion measured = base;
  measured.rates = Rates::calibrated;
  measured.kernels = in.calibrated_kernels;
  measured.exchange = in.calibrated_exchange;
  const MoeLayerTimes plain = price_moe_layer(base), real = price_moe_layer(measured);
  const double wire = plain.network() + plain.nvlink(), real_wire = real.network() + real.nvlink();
  out.push_back({"calibrated network and NVLink", real_wire, plain.compute(), real_wire / plain.compute()});
  out.push_back({"calibrated expert products and activation", wire, real.compute(), wire / real.compute()});

  measured.load.count_own_node = measured.load.every_copy = false;
  out.push_back(pipelined("all of these together", measured));
  return out;
}

}  // namespace shardplan
