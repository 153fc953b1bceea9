#pragma once
// Seconds of one kernel on one GPU, with basis and interval. One model for every verb.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/basis.hpp"
#include "hardware/cluster.hpp"

namespace shardplan {

enum class Rates { calibrated, datasheet };

/// forward: X W; input_grad: dY W^T; weight_grad: X^T dY (accumulating into FP32 where accumulate_fp32).
enum class GemmPass { forward, input_grad, weight_grad };

/// C[m,n] += A[m,k] B[k,n], `batch` independent copies. m = tokens, n = output features, k = input features of the
/// FORWARD product, whatever the pass: the model permutes them itself.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  DataType type = DataType::bf16;
  GemmPass pass = GemmPass::forward;
  bool accumulate_fp32 = false;  // weight_grad adds into an FP32 buffer: reads and writes 8 bytes an element
};

enum class AttentionPass { forward, backward };
/// The kernel library: fused (FlashAttention-like) or the three unfused kernels of older stacks.
enum class AttentionLibrary { fa2, fa3, cudnn, trtllm, triton, unfused, unspecified };

/// Self-attention of `batch` sequences: queries q_len against kv_len keys, of which `causal` masks the upper half of
/// the last q_len. heads and kv_heads are the local ones of this rank.
struct AttentionShape {
  std::int64_t batch = 1, q_len = 0, kv_len = 0;
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0;    // of Q and K
  std::int64_t v_head_dim = 0;  // of V; 0 = head_dim
  bool causal = true;
  std::int64_t window = 0;  // 0 = none
  bool dropout = false;     // unfused only: one more pass over the scores
  DataType type = DataType::bf16;
  AttentionPass pass = AttentionPass::forward;
  AttentionLibrary library = AttentionLibrary::unspecified;
  DataType kv_type = DataType::bf16;  // of cached K and V
  std::string_view build =
      {};  // a calibration table by its own name ("fa3-vllm"): validation prices a row with its library
};

/// Expert products of one rank: group sizes (tokens per local expert) times [k -> n]; one of the two or three matrices
/// each call. With no `build` named, the faster of two ways that stacks run them: one fused kernel, or the experts'
/// products one after the other, which bounds it from above (Transformer Engine's grouped linear layer loops over
/// streams).
struct GroupedGemm {
  std::span<const std::int64_t> tokens;  // one entry a local expert
  std::int64_t n = 0, k = 0;
  DataType type = DataType::bf16;
  GemmPass pass = GemmPass::forward;
  bool accumulate_fp32 = false;
  std::string_view build = {};  // a calibration table by its own name ("trtllm-cutlass"); empty = the GPU's first
};

/// One rank's experts of one layer as inference stacks time them: gather, the fused gate-up product (k = hidden, 2 x
/// inter columns), the gated activation, the down product, and the weighted sum back into tokens.
struct ExpertLayer {
  std::span<const std::int64_t> tokens;  // one entry a local expert
  std::int64_t hidden = 0, inter = 0;    // inter: this rank's share of one expert's width
  std::int64_t tokens_in =
      0;  // tokens entering the layer before routing, on all ranks of the group; 0 = only what arrives here
  std::int64_t top_k = 1;
  DataType type = DataType::bf16;
  std::string_view build = {};
};

/// Classes of memory-bound kernels; bytes = read + written.
enum class MemoryKernel { norm, rotary, activation, add, permute, cast, optimizer, cross_entropy, embedding, copy };

inline constexpr std::array<std::string_view, 10> kMemoryKernelNames = {
    "norm", "rotary", "activation", "add", "permute", "cast", "optimizer", "cross_entropy", "embedding", "copy"};

struct KernelTables;    // hardware/kernel_tables.hpp
struct KernelEvidence;  // hardware/kernel_price.hpp: the table, the neighbouring points, the form's ratio

/// Prices kernels of one GPU. Thread-safe for concurrent const use; answers are memoised by shape.
class KernelModel {
 public:
  KernelModel(const Gpu& gpu, Rates rates);
  /// With these tables in place of the built-in ones of that GPU.
  KernelModel(const Gpu& gpu, Rates rates, std::shared_ptr<const KernelTables> tables);
  ~KernelModel();
  KernelModel(KernelModel&&) noexcept;
  KernelModel& operator=(KernelModel&&) noexcept;

  /// Seconds of the kernel itself inside a CUDA graph or a full queue: no CPU launch time.
  Price gemm(const Gemm&) const;
  Price grouped_gemm(const GroupedGemm&) const;
  Price attention(const AttentionShape&) const;
  Price memory_bound(MemoryKernel, double bytes) const;
  /// A whole expert layer, as it was measured. InputError where no such table exists.
  Price expert_layer(const ExpertLayer&) const;

  // What an answer stands on (not memoised): null table where the price is a sum of other kernels or a datasheet's.
  Price explain(const Gemm&, KernelEvidence&) const;
  Price explain(const AttentionShape&, KernelEvidence&) const;
  Price explain(MemoryKernel, double bytes, KernelEvidence&) const;
  Price explain(const ExpertLayer&, KernelEvidence&) const;
  Price explain(const GroupedGemm&, KernelEvidence&) const;

  /// A training step runs hot: large products at this fraction (<= 1) of their burst rate, by data type.
  double sustained_fraction(DataType) const;
  /// Shortest time from one kernel to the next on the device, seconds.
  double launch_floor() const;
  const Gpu& gpu() const;
  Rates rates() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardplan
