#include "hardware/kernel_shapes.hpp"

#include <algorithm>
#include <cmath>

namespace shardplan {

namespace {
constexpr double kResultBytes = 2;  // results of 16 bit, whatever the operands
}  // namespace

GemmDims gemm_dims(const Gemm& g) {
  switch (g.pass) {
    case GemmPass::input_grad:
      return {g.m, g.k, g.n};
    case GemmPass::weight_grad:
      return {g.n, g.k, g.m};
    case GemmPass::forward:
      break;
  }
  return {g.m, g.n, g.k};
}

KernelWork gemm_work(double m, double n, double k, double bytes) {
  return {2 * m * n * k, bytes * (m * k + k * n) + kResultBytes * m * n};
}

KernelWork gemm_work(const Gemm& g) {
  const GemmDims d = gemm_dims(g);
  KernelWork work = gemm_work(double(d.m), double(d.n), double(d.k), bytes_of(g.type));
  if (g.pass == GemmPass::weight_grad && g.accumulate_fp32)
    work.bytes += (8 - kResultBytes) * double(d.m) * double(d.n);
  return {work.flops * double(g.batch), work.bytes * double(g.batch)};
}

double average_keys(const AttentionShape& a) {
  const double q = double(a.q_len), kv = double(a.kv_len);
  if (!a.causal) return a.window > 0 ? std::min(kv, double(a.window)) : kv;
  const double seen = std::min(q, kv);  // rows that see any key
  double keys = (kv - 0.5 * seen) * seen / q;
  if (a.window > 0) {
    // Row i of q sees min(window, first + i) keys, first = kv - seen.
    const double w = double(a.window), first = kv - seen;
    const double ramp = std::clamp(w - first, 0.0, seen);
    keys = std::min(keys, (ramp * (first + 0.5 * ramp) + (seen - ramp) * w) / q);
  }
  return std::max(keys, 0.5);
}

AttentionFeatures attention_features(const AttentionShape& a) {
  const double keys = average_keys(a);
  const double seq = 2 * keys;
  const double dv = a.v_head_dim > 0 ? double(a.v_head_dim) : double(a.head_dim);
  return {double(a.batch) * double(a.heads) * double(a.q_len) / seq, seq, double(a.heads) / double(a.kv_heads),
          0.5 * (double(a.head_dim) + dv)};
}

KernelWork attention_work(const AttentionFeatures& f, double bytes, double kv_bytes) {
  const double rows = f.batch_heads * f.seq;
  return {4 * f.head_dim * rows * 0.5 * f.seq, 2 * f.head_dim * rows * (bytes + kv_bytes / f.group)};
}

KernelWork attention_work(const AttentionShape& a) {
  const AttentionFeatures f = attention_features(a);
  const double bytes = bytes_of(a.type), kv_bytes = bytes_of(a.kv_type == DataType::bf16 ? a.type : a.kv_type);
  const double d = f.head_dim, rows = double(a.batch) * double(a.heads) * double(a.q_len);
  const double kv_rows = double(a.batch) * double(a.kv_heads) * double(a.kv_len);
  const double times = a.pass == AttentionPass::backward ? kBackwardOverForward : 1;
  return {times * 4 * d * rows * 0.5 * f.seq, times * 2 * d * (rows * bytes + kv_rows * kv_bytes)};
}

namespace {

constexpr double kTileRows = 64;  // rows of a tensor-core tile: the smallest M of Hopper's wgmma

void count_groups(std::span<const std::int64_t> tokens, ExpertFeatures& f) {
  for (const std::int64_t t : tokens) {
    f.rows += double(t);
    f.active += t > 0;
    f.largest = std::max(f.largest, double(t));
  }
}

}  // namespace

ExpertFeatures expert_features(const ExpertLayer& layer) {
  ExpertFeatures f;
  count_groups(layer.tokens, f);
  f.routed = std::max(f.rows, double(layer.tokens_in) * double(layer.top_k));
  f.hidden = double(layer.hidden);
  f.top_k = double(layer.top_k);
  f.inter = double(layer.inter);
  return f;
}

KernelWork expert_work(const ExpertFeatures& f, double bytes) {
  KernelWork work;
  work.flops = 6 * f.hidden * f.inter * (f.rows + 0.5 * kTileRows * f.active);
  work.bytes = 3 * f.hidden * f.inter * f.active * bytes;
  work.local_bytes = kResultBytes * f.rows * (2 * f.hidden + 3 * f.inter);
  work.routed_bytes = kResultBytes * f.routed * (f.hidden + f.inter);
  return work;
}

LogGrid::Logs expert_logs(const ExpertFeatures& f) {
  const double active = std::max(f.active, 1.0), rows = std::max(f.rows, 1.0);
  return {std::log(rows / active), std::log(active), std::log(f.inter),
          std::log(std::max(f.largest * active / rows, 1.0))};
}

ExpertFeatures expert_features_at(const LogGrid::Logs& at, const ExpertFeatures& like) {
  ExpertFeatures f = like;
  f.active = std::exp(at[1]);
  f.rows = std::exp(at[0]) * f.active;
  f.largest = std::exp(at[0] + at[3]);
  f.inter = std::exp(at[2]);
  f.routed = like.routed / std::max(like.rows, 1.0) * f.rows;
  return f;
}

GroupedFeatures grouped_features(const GroupedGemm& g) {
  GroupedFeatures out;
  ExpertFeatures& f = out.layer;
  count_groups(g.tokens, f);
  f.routed = f.rows;
  f.hidden = double(std::max(g.n, g.k));
  f.inter = double(std::min(g.n, g.k));
  const double weights = f.active * double(g.n) * double(g.k), bytes = bytes_of(g.type);
  out.work.flops = 2 * double(g.n) * double(g.k) * (f.rows + 0.5 * kTileRows * f.active);
  if (g.pass == GemmPass::weight_grad) {
    out.work.bytes = bytes * f.rows * double(g.n + g.k) + (g.accumulate_fp32 ? 8 : kResultBytes) * weights;
  } else {
    const double in = double(g.pass == GemmPass::forward ? g.k : g.n),
                 result = double(g.pass == GemmPass::forward ? g.n : g.k);
    out.work.bytes = bytes * (weights + f.rows * in) + kResultBytes * f.rows * result;
  }
  return out;
}

}  // namespace shardplan
