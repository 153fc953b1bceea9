#include "layouts/step/tensor_parallel.hpp"

#include <algorithm>

namespace shardplan {
namespace {

/// torchao's tensor-parallel styles cast before they gather where a tensor has one scale
/// (torchao/float8/float8_tensor_parallel.py); with a scale a row they gather 16 bits. Transformer Engine's stacks are
/// priced with 16 bits, which overstates those of its releases that gather what their quantisers wrote. Reductions are
/// in 16 bits everywhere.
double gathered_bytes(const LayerBuilder& b, DataType type) {
  return b.stack().framework == "pytorch" && type == DataType::fp8 ? bytes_of(type) : b.price().wide_bytes();
}

TpOverlap tp_overlap_of(const LayerBuilder& b) { return b.layout().tp_overlap.value_or(b.stack().tp_overlap); }

/// PyTorch's asynchronous tensor parallelism: the compiler finds a gather before a product, or a product before a
/// reduce-scatter, and fuses the two through symmetric memory (torch/_inductor/fx_passes/micro_pipeline_tp.py). What it
/// does not find stays in the open: a reduce-scatter of a sum of several products (the input gradients of Q, K and V,
/// of gate and up); the input's second gather, before its weight gradient (the gathered tokens are what that product
/// sums over); with per-row FP8 scales every gather, whose casts lie between it and the product (pytorch issue 149990).
bool symmetric_memory(const LayerBuilder& b) {
  return b.stack().framework == "pytorch" && tp_overlap_of(b) == TpOverlap::async;
}
/// Its fused reduce-scatter collects the partial results of all ranks and sums them afterwards, in the open: read once,
/// written as one shard.
Price partial_sums(const LayerBuilder& b) {
  const double bytes = b.price().wide_bytes() * b.tokens() * static_cast<double>(b.question().model->hidden);
  return b.price().memory(MemoryKernel::add, bytes * (1 + 1.0 / b.layout().tp));
}

/// Exposed seconds of a forward collective beside a product of `gemm` seconds.
/// none, bulk: all of it. async, user buffers: cut into tp chunks sent while the next chunk is multiplied: the first
/// chunk and what exceeds the product stay visible, and what hides takes its SMs from the product. async, symmetric
/// memory: a rank's own chunk is multiplied while the others travel, by copy engines, which hold no SMs.
double exposed_beside(const LayerBuilder& b, double seconds, double gemm) {
  if (tp_overlap_of(b) != TpOverlap::async || seconds <= 0) return seconds;
  const double chunk = 1.0 / b.layout().tp;
  if (symmetric_memory(b)) return std::max(0.0, seconds - gemm * (1 - chunk));
  const double rest = seconds * (1 - chunk);
  return seconds * chunk + std::max(0.0, rest - gemm) + b.price().contention(Part::tp) * std::min(rest, gemm);
}

}  // namespace

TpTraffic tp_traffic(const LayerBuilder& b, const Groups& groups, DataType type) {
  TpTraffic t;
  if (b.layout().tp == 1 || !b.question().options.on(Effect::tp_communication)) return t;
  t.on = true;
  t.sequence = b.layout().sequence_parallel();
  // Activations of all tokens of the rank: s b h elements.
  const double elements = b.tokens() * static_cast<double>(b.question().model->hidden);
  if (t.sequence) {
    t.gather = b.price().collective(Collective::all_gather, gathered_bytes(b, type) * elements, groups.tp);
    t.scatter = b.price().collective(Collective::reduce_scatter, b.price().wide_bytes() * elements, groups.tp);
  } else {
    t.reduce = b.price().collective(Collective::all_reduce, b.price().wide_bytes() * elements, groups.tp);
  }
  return t;
}

double hidden_reduction(const LayerBuilder& b, const TpTraffic& t, int products) {
  if (!t.on || (!b.stack().async_tp_backward && tp_overlap_of(b) == TpOverlap::none)) return 0;
  if (symmetric_memory(b) && products > 1) return 0;
  return t.sequence ? t.scatter.seconds : t.reduce.seconds;
}

double hidden_gather(const LayerBuilder& b, const TpTraffic& t) {
  if (!t.on || !t.sequence || symmetric_memory(b) ||
      (!b.stack().async_tp_backward && tp_overlap_of(b) == TpOverlap::none))
    return 0;
  return t.gather.seconds;
}

void tp_collectives(LayerBuilder& b, const TpTraffic& t, Module module, int products, double column, double row) {
  if (!t.on) return;
  const auto exposed = [&](const Price& p, double gemm) {
    return p.seconds > 0 ? scaled(p, exposed_beside(b, p.seconds, gemm) / p.seconds) : p;
  };
  if (!t.sequence) {
    b.communicate_forward(module, Part::tp, exposed(t.reduce, row));
    if (hidden_reduction(b, t, products) == 0) b.communicate_backward(Part::tp, t.reduce);
    return;
  }
  const bool lone_gather = symmetric_memory(b) && b.linear_type() == DataType::fp8_row;
  b.communicate_forward(module, Part::tp, lone_gather ? t.gather : exposed(t.gather, column));
  b.communicate_forward(module, Part::tp, exposed(t.scatter, row));
  // Of the row-parallel output gradient, before both its products.
  b.communicate_backward(Part::tp, lone_gather ? t.gather : exposed(t.gather, row));
  const bool reduced = hidden_reduction(b, t, products) > 0;
  if (!reduced) b.communicate_backward(Part::tp, t.scatter);
  if (hidden_gather(b, t) == 0) b.communicate_backward(Part::tp, t.gather);
  if (!symmetric_memory(b)) return;
  b.communicate_forward(module, Part::tp, partial_sums(b));
  if (reduced) b.communicate_backward(Part::tp, partial_sums(b));
}

}  // namespace shardplan
