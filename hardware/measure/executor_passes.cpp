// One pass of the executor: input out of the transport, blocks, result into it.
#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "hardware/measure/digest.hpp"
#include "hardware/measure/executor_state.hpp"
#include "sim/pass_text.hpp"

namespace shardplan {
void PipelineExecutor::Impl::wrong(const Rank& rank, const Pass& pass, const std::string& what) const {
  throw InputError("schedule", "rank " + std::to_string(rank.rank) + ": the " + pass_kind_name(pass.kind) +
                                   " pass of micro-batch " + std::to_string(pass.microbatch) + " on stage " +
                                   std::to_string(pass.stage) + " " + what);
}

/// Moves the chunk's state on, or says what came too early or twice.
void PipelineExecutor::Impl::advance(Rank& rank, const Pass& pass) {
  ChunkState& state = rank.state[static_cast<std::size_t>(pass.stage * m + pass.microbatch)];
  const auto expect = [&](ChunkState before, ChunkState after, const char* missing) {
    if (state != before) wrong(rank, pass, state < before ? std::string("comes before its ") + missing : "comes twice");
    state = after;
  };
  switch (pass.kind) {
    case PassKind::forward:
      return expect(ChunkState::nothing, ChunkState::forwarded, "");
    case PassKind::backward:
      return expect(ChunkState::forwarded, ChunkState::finished, "forward pass");
    case PassKind::input_grad:
      return expect(ChunkState::forwarded, ChunkState::input_done, "forward pass");
    case PassKind::weight_grad:
      return expect(ChunkState::input_done, ChunkState::finished, "input gradient");
    case PassKind::overlapped:
      return;
  }
}

Activation& PipelineExecutor::Impl::acquire(Rank& rank, const Pass& pass) {
  if (rank.free.empty()) {
    rank.pool.push_back(std::make_unique<Activation>(shape, options.blocks_per_slot));
    rank.free.push_back(rank.pool.back().get());
  }
  Activation* taken = rank.free.back();
  rank.free.pop_back();
  rank.live[{pass.stage, pass.microbatch}] = taken;
  return *taken;
}

void PipelineExecutor::Impl::release(Rank& rank, const Pass& pass) {
  const auto at = rank.live.find({pass.stage, pass.microbatch});
  rank.free.push_back(at->second);
  rank.live.erase(at);
}

void PipelineExecutor::Impl::count_live(Rank& rank, PassKind kind) {
  if (kind == PassKind::forward) {
    rank.record.peak_chunks_until_input_grad = std::max(rank.record.peak_chunks_until_input_grad, ++rank.until_input);
    rank.record.peak_chunks_until_weight_grad =
        std::max(rank.record.peak_chunks_until_weight_grad, ++rank.until_weight);
  }
  if (kind == PassKind::backward || kind == PassKind::input_grad) --rank.until_input;
  if (kind == PassKind::backward || kind == PassKind::weight_grad) --rank.until_weight;
}

/// While calibrating the sender may write its message at any time: an input of the model, as large and as far away,
/// stands in for it.
void PipelineExecutor::Impl::receive(const Rank& rank, const Pass& pass, float* into) {
  const int from = input_channel(rank, pass);
  if (waiting && from >= 0)
    transport->copy_out(from, into);
  else
    std::memcpy(into, inputs[static_cast<std::size_t>(rank.replica * m + pass.microbatch)].data(), narrow_bytes());
}

void PipelineExecutor::Impl::forward(Rank& rank, const Pass& pass, Activation& act) {
  receive(rank, pass, act.x[0].data());
  for (int i = 0; i < options.blocks_per_slot; ++i) {
    const auto b = static_cast<std::size_t>(i);
    const std::vector<float>& w = weights[static_cast<std::size_t>(block_of(pass.stage, i))];
    block_forward(shape, act.x[b].data(), w.data(), w.data() + shape.hidden * shape.inner, act.a[b].data(),
                  act.x[b + 1].data());
  }
  if (next_of(pass.stage) >= 0)
    transport->copy_in(channel(rank.replica, pass.stage, pass.microbatch, false), act.x.back().data());
}

/// The loss is 1/2 |Y|^2 of the last output, so its gradient is Y itself.
void PipelineExecutor::Impl::input_gradient(Rank& rank, const Pass& pass, Activation& act) {
  if (next_of(pass.stage) < 0)
    std::memcpy(act.dy.back().data(), act.x.back().data(), narrow_bytes());
  else
    receive(rank, pass, act.dy.back().data());
  for (int i = options.blocks_per_slot - 1; i >= 0; --i) {
    const auto b = static_cast<std::size_t>(i);
    const std::vector<float>& w = weights[static_cast<std::size_t>(block_of(pass.stage, i))];
    block_input_grad(shape, w.data(), w.data() + shape.hidden * shape.inner, act.a[b].data(), act.dy[b + 1].data(),
                     act.du[b].data(), act.dy[b].data());
  }
}

void PipelineExecutor::Impl::send_gradient(Rank& rank, const Pass& pass, Activation& act) {
  if (previous_of(pass.stage) >= 0)
    transport->copy_in(channel(rank.replica, pass.stage, pass.microbatch, true), act.dy[0].data());
  else
    std::memcpy(rank.first_input_grad.data(), act.dy[0].data(), narrow_bytes());
  if (options.digest && previous_of(pass.stage) < 0)
    checksum.fetch_add(digest_of(act.dy[0], static_cast<std::uint64_t>(rank.replica * m + pass.microbatch)));
}

void PipelineExecutor::Impl::weight_gradient(Rank& rank, const Pass& pass, Activation& act) {
  for (int i = 0; i < options.blocks_per_slot; ++i) {
    const auto b = static_cast<std::size_t>(i);
    float* sum = rank.gradient.data() + gradient_offset[static_cast<std::size_t>(pass.stage)] + i * shape.weights();
    float* into = options.digest ? rank.scratch.data() : sum;
    if (options.digest) std::fill(rank.scratch.begin(), rank.scratch.end(), 0.0f);
    block_weight_grad(shape, act.x[b].data(), act.a[b].data(), act.dy[b + 1].data(), act.du[b].data(), into,
                      into + shape.hidden * shape.inner);
    if (!options.digest) continue;
    const auto identity =
        static_cast<std::uint64_t>((rank.replica * m + pass.microbatch) * blocks() + block_of(pass.stage, i)) +
        (1ULL << 40);
    checksum.fetch_add(digest_of(rank.scratch, identity));
    add(shape.weights(), rank.scratch.data(), sum);
  }
}

/// The channel that the pass takes its input from, or -1.
int PipelineExecutor::Impl::input_channel(const Rank& rank, const Pass& pass) const {
  if (pass.kind == PassKind::forward)
    return previous_of(pass.stage) < 0 ? -1 : channel(rank.replica, previous_of(pass.stage), pass.microbatch, false);
  if (pass.kind == PassKind::weight_grad) return -1;
  return next_of(pass.stage) < 0 ? -1 : channel(rank.replica, next_of(pass.stage), pass.microbatch, true);
}

/// The channel that it rings when it ends, or -1; `to` = the stage at its other end.
int PipelineExecutor::Impl::output_channel(const Rank& rank, const Pass& pass, int& to) const {
  to = pass.kind == PassKind::forward       ? next_of(pass.stage)
       : pass.kind == PassKind::weight_grad ? -1
                                            : previous_of(pass.stage);
  return to < 0 ? -1 : channel(rank.replica, pass.stage, pass.microbatch, pass.kind != PassKind::forward);
}

void PipelineExecutor::Impl::ring_out(Rank& rank, const Pass& pass) {
  int to = -1;
  const int out = output_channel(rank, pass, to);
  if (out < 0) return;
  if (rank_of(to) != rank_of(pass.stage)) {
    if (rank.replica == 0 && out == options.drop_message) return;
    ++rank.record.messages;
    rank.record.message_bytes += static_cast<std::int64_t>(narrow_bytes());
  }
  if (waiting) transport->ring(out, rank.clock.virtual_now());
}

PassRecord PipelineExecutor::Impl::run_pass(Rank& rank, const Pass& pass) {
  const int in = input_channel(rank, pass);
  const double available = waiting && in >= 0 ? transport->wait(rank.thread, in) : 0;
  advance(rank, pass);
  count_live(rank, pass.kind);
  rank.clock.begin(available);
  PassRecord record;
  record.wall_start = rank.clock.wall_begin();
  record.virtual_start = rank.clock.virtual_now();
  Activation& act = pass.kind == PassKind::forward ? acquire(rank, pass) : *rank.live.at({pass.stage, pass.microbatch});
  if (pass.kind == PassKind::forward) forward(rank, pass, act);
  if (pass.kind == PassKind::backward || pass.kind == PassKind::input_grad) {
    input_gradient(rank, pass, act);
    if (pass.kind == PassKind::input_grad) send_gradient(rank, pass, act);
  }
  if (pass.kind == PassKind::backward || pass.kind == PassKind::weight_grad) weight_gradient(rank, pass, act);
  if (pass.kind == PassKind::backward) send_gradient(rank, pass, act);
  if (pass.kind == PassKind::backward || pass.kind == PassKind::weight_grad) release(rank, pass);
  rank.clock.end();
  record.wall_end = record.wall_start + rank.clock.last_wall();
  record.virtual_end = rank.clock.virtual_now();
  ring_out(rank, pass);
  return record;
}

}  // namespace shardplan
