#pragma once
// Arithmetic of one token: matrix products and attention. Multiply and add count as two.
#include <cstdint>

#include "models/model.hpp"

namespace shardplan {

/// How attention's scores are counted. causal: a token attends to those before it, on average half of the sequence;
/// full: to all of it, the convention of older papers (Megatron-LM's formula).
enum class AttentionCount { causal, full };

/// FLOP of one token's forward pass. Norms, rotary embedding, activation functions, softmax and permutations are left
/// out: they are bound by memory, not arithmetic.
struct TokenFlops {
  double projections = 0;  // attention's matrices
  double scores = 0;       // Q K^T and P V; of linear attention, its state
  double mlp = 0;          // dense feed-forward network
  double router = 0;
  double experts = 0;  // the top_k routed experts
  double shared = 0;   // shared experts
  double head = 0;     // output head (an embedding lookup is not arithmetic)
  double mtp_projection = 0;

  double total() const { return projections + scores + mlp + router + experts + shared + head + mtp_projection; }
  double matmul() const { return total() - scores; }
  TokenFlops& operator+=(const TokenFlops&);
};

/// Tokens that a token attends to, averaged over a sequence of s tokens. causal: s/2; a window of w < s: w - w^2/(2s),
/// as the first w tokens see half a window on average and the others a whole one. full: min(s, w).
/// (The exact causal mean is (s + 1)/2; s/2 is the literature's convention.)
double mean_context(std::int64_t seq_len, std::int64_t window, AttentionCount count);

/// One layer. Scores: 2 heads (d_qk + d_v) mean_context, with d_qk = qk_nope + qk_rope and d_v = v_head for MLA
/// (expanded form, as in training). Sparse attention: the chosen tokens, and the indexer's scores over all.
TokenFlops layer_flops(const Model&, const Layer&, std::int64_t seq_len, AttentionCount count = AttentionCount::causal);
/// 2 hidden vocab.
double head_flops(const Model&);
/// The main model's forward pass: all layers and the head. MTP left out.
TokenFlops forward_flops(const Model&, std::int64_t seq_len, AttentionCount count = AttentionCount::causal);
/// The MTP layers' forward pass: layer, projection of 2 hidden to hidden, and the head once more each.
TokenFlops mtp_flops(const Model&, std::int64_t seq_len, AttentionCount count = AttentionCount::causal);

/// Training = forward + gradients to inputs and to weights, each as large as the forward pass. No recomputation.
inline constexpr double kTrainingOverForward = 3;
double training_flops(const Model&, std::int64_t seq_len, AttentionCount count = AttentionCount::causal);

/// The rule of thumb 6 N D (Kaplan et al., arXiv 2001.08361): 6 FLOP per active parameter and token. It counts the
/// embedding lookup as arithmetic and leaves attention scores out: N = active parameters, the result per token.
double six_n_per_token(const Model&);

}  // namespace shardplan
