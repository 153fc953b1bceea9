#pragma once
// What each kernel computes and moves, and the coordinates that its tables are laid out in.
#include "hardware/kernel_form.hpp"
#include "hardware/kernel_grid.hpp"
#include "hardware/kernels.hpp"

namespace shardplan {

/// Backward attention recomputes the scores and forms dV, dP, dQ, dK: five products for the forward's two.
inline constexpr double kBackwardOverForward = 2.5;

/// Rows, columns and depth of the product that runs: forward [m,n] over k; input-grad dX[m,k] over n; weight-grad
/// dW[n,k] over m (the tokens).
struct GemmDims {
  std::int64_t m = 0, n = 0, k = 0;
};
GemmDims gemm_dims(const Gemm&);

/// FLOPs 2 m n k; bytes: both operands once, the result once in 16 bit (`bytes` = bytes of an operand's element).
KernelWork gemm_work(double m, double n, double k, double bytes);
/// Of the whole batch; a result that accumulates in FP32 is read and written, 8 bytes an element.
KernelWork gemm_work(const Gemm&);

/// Any attention as the causal self-attention of equal work: sequences of `seq` tokens, `batch_heads` of them.
struct AttentionFeatures {
  double batch_heads = 0;  // query heads over all sequences
  double seq = 0;
  double group = 1;     // query heads per KV head
  double head_dim = 0;  // mean of Q's and V's, which keeps FLOPs equal
};
/// With K = average keys of a query row (kv - q/2 causal, kv otherwise, at most the window), the causal self-attention
/// with the same K has seq = 2 K, and batch_heads = b h q / seq keeps the rows. Leaves out that tiles on the diagonal
/// are computed whole.
AttentionFeatures attention_features(const AttentionShape&);
/// Keys that a query row sees on average.
double average_keys(const AttentionShape&);
/// FLOPs of Q K^T and P V: 2 (d + d_v) b h q K; backward 2.5 times. Bytes: Q, O, and K, V once (backward: 2.5 times).
KernelWork attention_work(const AttentionShape&);
KernelWork attention_work(const AttentionFeatures&, double bytes, double kv_bytes);

/// An expert layer, or one grouped product, in the coordinates of the expert tables.
struct ExpertFeatures {
  double rows = 0;     // tokens over all local experts
  double active = 0;   // experts with tokens
  double largest = 0;  // tokens of the largest expert
  double routed = 0;   // tokens times top-k over all ranks: what the routing kernels of some libraries pass over
  double hidden = 0, inter = 0;
  double top_k = 0;  // 0 = not known
};
ExpertFeatures expert_features(const ExpertLayer&);
/// Coordinates: rows per active expert, active experts, inter, largest expert over the mean of the active ones.
LogGrid::Logs expert_logs(const ExpertFeatures&);
/// FLOPs 6 hidden inter (rows + 32 active): three products, each expert's last tile of 64 rows half empty on average.
/// Bytes: weights of the active experts. Local bytes: rows gathered, activated and weighted, 2 hidden + 3 inter values
/// of 16 bit each.
KernelWork expert_work(const ExpertFeatures&, double bytes);
/// Features of a grid point; routed rows per local row as in `like`.
ExpertFeatures expert_features_at(const LogGrid::Logs&, const ExpertFeatures& like);

/// One grouped product as an expert layer with the same groups, hidden and inter, and its own work beside it.
struct GroupedFeatures {
  ExpertFeatures layer;
  KernelWork work;
};
GroupedFeatures grouped_features(const GroupedGemm&);

}  // namespace shardplan
