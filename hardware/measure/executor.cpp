#include "hardware/measure/executor.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <thread>

#include "base/errors.hpp"
#include "base/random.hpp"
#include "hardware/measure/host_clock.hpp"
#include "hardware/measure/mailbox.hpp"
#include "hardware/measure/ring.hpp"

namespace shardplan {
namespace {

std::vector<float> random_floats(std::int64_t n, std::uint64_t seed, double scale) {
  Random random(seed);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = static_cast<float>(scale * random.normal());
  return out;
}

/// What a micro-batch keeps on a virtual stage from its forward pass to its weight gradient. x and dy have one entry
/// more than blocks: the stage's input and every block's output, and their gradients.
struct Activation {
  std::vector<std::vector<float>> x, a, dy, du;

  Activation(const BlockShape& s, int blocks) {
    const auto wide = static_cast<std::size_t>(s.tokens * s.inner),
               narrow = static_cast<std::size_t>(s.tokens * s.hidden);
    x.assign(static_cast<std::size_t>(blocks) + 1, std::vector<float>(narrow));
    dy = x;
    a.assign(static_cast<std::size_t>(blocks), std::vector<float>(wide));
    du = a;
  }
};

enum class ChunkState : std::uint8_t { nothing, forwarded, input_done, finished };

/// FNV-1a over 32-bit words, seeded with the item's identity.
std::uint64_t digest_of(std::span<const float> values, std::uint64_t identity) {
  std::uint64_t h = 0xcbf29ce484222325ULL ^ (identity * 0x9E3779B97F4A7C15ULL);
  for (const float v : values) h = (h ^ std::bit_cast<std::uint32_t>(v)) * 0x100000001b3ULL;
  return h;
}

const char* pass_name(PassKind kind) {
  switch (kind) {
    case PassKind::forward:
      return "forward";
    case PassKind::backward:
      return "backward";
    case PassKind::input_grad:
      return "input-gradient";
    case PassKind::weight_grad:
      return "weight-gradient";
    case PassKind::overlapped:
      return "overlapped";
  }
  return "";
}

void refuse_what_is_not_executed(const Order& order, const ExecutorOptions& options) {
  const auto refuse = [](const std::string& what) { throw InputError("schedule", "the cpu backend executes " + what); };
  if (order.parameter_copies != 1) refuse("no bidirectional schedules");
  if (std::count(order.previous.begin(), order.previous.end(), -1) != 1) refuse("one chain of stages only");
  for (const auto& passes : order.passes) {
    for (const Pass& pass : passes) {
      if (pass.kind == PassKind::overlapped) refuse("no overlapped passes");
      if (pass.stage < 0 || pass.stage >= order.stages() || pass.microbatch < 0 ||
          pass.microbatch >= order.microbatches)
        throw InputError("schedule", "a pass names a stage or micro-batch that is not there");
    }
  }
  const BlockShape& s = options.shape;
  if (s.tokens < 1 || s.hidden < 1 || s.inner < 1 || options.blocks_per_slot < 1 || options.replicas < 1)
    throw InputError("shape", "tokens, hidden, inner, blocks and replicas must be at least 1");
}

}  // namespace

std::vector<float> executor_weights(const BlockShape& s, int block) {
  // Scaled so that activations keep their size through ReLU and residual.
  return random_floats(s.weights(), 1000 + static_cast<std::uint64_t>(block),
                       0.5 / std::sqrt(static_cast<double>(s.hidden + s.inner)));
}

std::vector<float> executor_input(const BlockShape& s, int replica, int microbatch) {
  return random_floats(s.tokens * s.hidden,
                       7000000 + static_cast<std::uint64_t>(replica) * 100000 + static_cast<std::uint64_t>(microbatch),
                       1.0);
}

// ---------------------------------------------------------------------------------------------------------------- the
// executor

struct PipelineExecutor::Impl {
  /// One rank thread of one replica.
  struct Rank {
    int replica = 0, rank = 0, thread = 0;
    std::vector<std::unique_ptr<Activation>> pool;  // all that were ever allocated
    std::vector<Activation*> free;
    std::map<std::pair<int, int>, Activation*> live;  // by (stage, micro-batch)
    std::vector<ChunkState> state;                    // by stage * microbatches + micro-batch
    std::vector<float> gradient;                      // of all its blocks, stage after stage
    std::vector<float> scratch;
    std::vector<float> first_input_grad;
    RankClock clock;
    RankRecord record;
    int until_input = 0, until_weight = 0;
  };

  Order order;
  ExecutorOptions options;
  BlockShape shape;
  int m = 0;
  std::vector<std::vector<float>> weights;    // by block
  std::vector<std::vector<float>> inputs;     // by replica * m + micro-batch
  std::vector<std::int64_t> gradient_offset;  // by stage, within its rank's gradient
  std::vector<Rank> ranks;
  std::unique_ptr<Mailbox> mailbox;
  std::unique_ptr<RankTeam> team;
  std::vector<std::vector<int>> ring_first;  // by rank: each replica's first channel of the all-reduce
  std::atomic<std::uint64_t> checksum{0};
  bool waiting = true;  // false while calibrating

  Impl(const Order& o, const ExecutorOptions& opt) : order(o), options(opt), shape(opt.shape), m(o.microbatches) {
    refuse_what_is_not_executed(order, options);
    make_data();
    make_ranks();
    make_channels();
    team = std::make_unique<RankTeam>(static_cast<int>(ranks.size()), options.pin);
  }

  int blocks() const {
    const auto last = *std::max_element(order.layer_slot.begin(), order.layer_slot.end());
    return (last + 1) * options.blocks_per_slot;
  }
  int block_of(int stage, int i) const {
    return order.layer_slot[static_cast<std::size_t>(stage)] * options.blocks_per_slot + i;
  }
  int next_of(int stage) const { return order.next[static_cast<std::size_t>(stage)]; }
  int previous_of(int stage) const { return order.previous[static_cast<std::size_t>(stage)]; }
  int rank_of(int stage) const { return order.rank_of_stage[static_cast<std::size_t>(stage)]; }
  std::size_t narrow_bytes() const { return static_cast<std::size_t>(shape.tokens * shape.hidden) * sizeof(float); }

  void make_data() {
    for (int b = 0; b < blocks(); ++b) weights.push_back(executor_weights(shape, b));
    for (int d = 0; d < options.replicas; ++d) {
      for (int i = 0; i < m; ++i) inputs.push_back(executor_input(shape, d, i));
    }
  }

  void make_ranks() {
    gradient_offset.assign(static_cast<std::size_t>(order.stages()), 0);
    std::vector<std::int64_t> length(static_cast<std::size_t>(order.ranks), 0);
    for (int s = 0; s < order.stages(); ++s) {
      gradient_offset[static_cast<std::size_t>(s)] = length[static_cast<std::size_t>(rank_of(s))];
      length[static_cast<std::size_t>(rank_of(s))] += options.blocks_per_slot * shape.weights();
    }
    for (int d = 0; d < options.replicas; ++d) {
      for (int r = 0; r < order.ranks; ++r) {
        Rank rank;
        rank.replica = d;
        rank.rank = r;
        rank.thread = d * order.ranks + r;
        rank.gradient.assign(static_cast<std::size_t>(length[static_cast<std::size_t>(r)]), 0.0f);
        rank.scratch.assign(static_cast<std::size_t>(shape.weights()), 0.0f);
        rank.first_input_grad.assign(static_cast<std::size_t>(shape.tokens * shape.hidden), 0.0f);
        ranks.push_back(std::move(rank));
      }
    }
  }

  /// Channels: replica, stage, micro-batch, {activation to next, gradient to previous}; then the rings.
  void make_channels() {
    const std::int64_t message = shape.tokens * shape.hidden;
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(options.replicas) *
                                          static_cast<std::size_t>(order.stages()) * static_cast<std::size_t>(m) * 2,
                                      message);
    if (options.replicas > 1) {
      for (int r = 0; r < order.ranks; ++r) {
        ring_first.emplace_back();
        const auto floats = static_cast<std::int64_t>(ranks[static_cast<std::size_t>(r)].gradient.size());
        for (int d = 0; d < options.replicas; ++d) {
          ring_first.back().push_back(static_cast<int>(lengths.size()));
          for (const std::int64_t n : ring_channel_floats(options.replicas, d, floats)) lengths.push_back(n);
        }
      }
    }
    mailbox = std::make_unique<Mailbox>(std::move(lengths), order.ranks * options.replicas, options.spin);
  }

  int channel(int replica, int stage, int microbatch, bool gradient) const {
    return ((replica * order.stages() + stage) * m + microbatch) * 2 + (gradient ? 1 : 0);
  }

  // -------------------------------------------------------------------------------------------------------------- one
  // pass

  [[noreturn]] void wrong(const Rank& rank, const Pass& pass, const std::string& what) const {
    throw InputError("schedule", "rank " + std::to_string(rank.rank) + ": the " + pass_name(pass.kind) +
                                     " pass of micro-batch " + std::to_string(pass.microbatch) + " on stage " +
                                     std::to_string(pass.stage) + " " + what);
  }

  /// Moves the chunk's state on, or says what came too early or twice.
  void advance(Rank& rank, const Pass& pass) {
    ChunkState& state = rank.state[static_cast<std::size_t>(pass.stage * m + pass.microbatch)];
    const auto expect = [&](ChunkState before, ChunkState after, const char* missing) {
      if (state != before)
        wrong(rank, pass, state < before ? std::string("comes before its ") + missing : "comes twice");
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

  Activation& acquire(Rank& rank, const Pass& pass) {
    if (rank.free.empty()) {
      rank.pool.push_back(std::make_unique<Activation>(shape, options.blocks_per_slot));
      rank.free.push_back(rank.pool.back().get());
    }
    Activation* taken = rank.free.back();
    rank.free.pop_back();
    rank.live[{pass.stage, pass.microbatch}] = taken;
    return *taken;
  }

  void release(Rank& rank, const Pass& pass) {
    const auto at = rank.live.find({pass.stage, pass.microbatch});
    rank.free.push_back(at->second);
    rank.live.erase(at);
  }

  void count_live(Rank& rank, PassKind kind) {
    if (kind == PassKind::forward) {
      rank.record.peak_chunks_until_input_grad = std::max(rank.record.peak_chunks_until_input_grad, ++rank.until_input);
      rank.record.peak_chunks_until_weight_grad =
          std::max(rank.record.peak_chunks_until_weight_grad, ++rank.until_weight);
    }
    if (kind == PassKind::backward || kind == PassKind::input_grad) --rank.until_input;
    if (kind == PassKind::backward || kind == PassKind::weight_grad) --rank.until_weight;
  }

  void forward(Rank& rank, const Pass& pass, Activation& act) {
    if (previous_of(pass.stage) < 0)
      std::memcpy(act.x[0].data(), inputs[static_cast<std::size_t>(rank.replica * m + pass.microbatch)].data(),
                  narrow_bytes());
    else
      mailbox->copy_out(channel(rank.replica, previous_of(pass.stage), pass.microbatch, false), act.x[0].data());
    for (int i = 0; i < options.blocks_per_slot; ++i) {
      const auto b = static_cast<std::size_t>(i);
      const std::vector<float>& w = weights[static_cast<std::size_t>(block_of(pass.stage, i))];
      block_forward(shape, act.x[b].data(), w.data(), w.data() + shape.hidden * shape.inner, act.a[b].data(),
                    act.x[b + 1].data());
    }
    if (next_of(pass.stage) >= 0)
      mailbox->copy_in(channel(rank.replica, pass.stage, pass.microbatch, false), act.x.back().data());
  }

  /// The loss is 1/2 |Y|^2 of the last output, so its gradient is Y itself.
  void input_gradient(Rank& rank, const Pass& pass, Activation& act) {
    if (next_of(pass.stage) < 0)
      std::memcpy(act.dy.back().data(), act.x.back().data(), narrow_bytes());
    else
      mailbox->copy_out(channel(rank.replica, next_of(pass.stage), pass.microbatch, true), act.dy.back().data());
    for (int i = options.blocks_per_slot - 1; i >= 0; --i) {
      const auto b = static_cast<std::size_t>(i);
      const std::vector<float>& w = weights[static_cast<std::size_t>(block_of(pass.stage, i))];
      block_input_grad(shape, w.data(), w.data() + shape.hidden * shape.inner, act.a[b].data(), act.dy[b + 1].data(),
                       act.du[b].data(), act.dy[b].data());
    }
  }

  void send_gradient(Rank& rank, const Pass& pass, Activation& act) {
    if (previous_of(pass.stage) >= 0)
      mailbox->copy_in(channel(rank.replica, pass.stage, pass.microbatch, true), act.dy[0].data());
    else
      std::memcpy(rank.first_input_grad.data(), act.dy[0].data(), narrow_bytes());
    if (options.digest && previous_of(pass.stage) < 0)
      checksum.fetch_add(digest_of(act.dy[0], static_cast<std::uint64_t>(rank.replica * m + pass.microbatch)));
  }

  void weight_gradient(Rank& rank, const Pass& pass, Activation& act) {
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
  int input_channel(const Rank& rank, const Pass& pass) const {
    if (pass.kind == PassKind::forward)
      return previous_of(pass.stage) < 0 ? -1 : channel(rank.replica, previous_of(pass.stage), pass.microbatch, false);
    if (pass.kind == PassKind::weight_grad) return -1;
    return next_of(pass.stage) < 0 ? -1 : channel(rank.replica, next_of(pass.stage), pass.microbatch, true);
  }

  /// The channel that it rings when it ends, or -1; `to` = the stage at its other end.
  int output_channel(const Rank& rank, const Pass& pass, int& to) const {
    to = pass.kind == PassKind::forward       ? next_of(pass.stage)
         : pass.kind == PassKind::weight_grad ? -1
                                              : previous_of(pass.stage);
    return to < 0 ? -1 : channel(rank.replica, pass.stage, pass.microbatch, pass.kind != PassKind::forward);
  }

  void ring_out(Rank& rank, const Pass& pass) {
    int to = -1;
    const int out = output_channel(rank, pass, to);
    if (out < 0) return;
    if (rank_of(to) != rank_of(pass.stage)) {
      if (rank.replica == 0 && out == options.drop_message) return;
      ++rank.record.messages;
      rank.record.message_bytes += static_cast<std::int64_t>(narrow_bytes());
    }
    if (waiting) mailbox->ring(out, rank.clock.virtual_now());
  }

  PassRecord run_pass(Rank& rank, const Pass& pass) {
    const int in = input_channel(rank, pass);
    const double available = waiting && in >= 0 ? mailbox->wait(rank.thread, in) : 0;
    advance(rank, pass);
    count_live(rank, pass.kind);
    rank.clock.begin(available);
    PassRecord record;
    record.wall_start = rank.clock.wall_begin();
    record.virtual_start = rank.clock.virtual_now();
    Activation& act =
        pass.kind == PassKind::forward ? acquire(rank, pass) : *rank.live.at({pass.stage, pass.microbatch});
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

  // -------------------------------------------------------------------------------------------------------------- one
  // step

  void reset(Rank& rank) {
    for (auto& [key, act] : rank.live) rank.free.push_back(act);
    rank.live.clear();
    rank.state.assign(static_cast<std::size_t>(order.stages() * m), ChunkState::nothing);
    std::fill(rank.gradient.begin(), rank.gradient.end(), 0.0f);
    rank.clock = RankClock();
    rank.record = RankRecord();
    rank.until_input = rank.until_weight = 0;
  }

  void check_finished(const Rank& rank) const {
    for (int s = 0; s < order.stages(); ++s) {
      if (rank_of(s) != rank.rank) continue;
      for (int i = 0; i < m; ++i) {
        if (rank.state[static_cast<std::size_t>(s * m + i)] != ChunkState::finished)
          throw InputError("schedule", "rank " + std::to_string(rank.rank) + " never finishes micro-batch " +
                                           std::to_string(i) + " on stage " + std::to_string(s));
      }
    }
  }

  void all_reduce(Rank& rank) {
    const std::vector<int>& first = ring_first[static_cast<std::size_t>(rank.rank)];
    const double before = rank.clock.cpu();
    ring_all_reduce(*mailbox, rank.thread, rank.replica, first, rank.gradient, rank.clock);
    rank.record.all_reduce_cpu = rank.clock.cpu() - before;
    for (const std::int64_t n :
         ring_channel_floats(options.replicas, rank.replica, static_cast<std::int64_t>(rank.gradient.size()))) {
      ++rank.record.all_reduce_messages;
      rank.record.all_reduce_bytes += n * static_cast<std::int64_t>(sizeof(float));
    }
  }

  void run_rank(Rank& rank) {
    for (const Pass& pass : order.passes[static_cast<std::size_t>(rank.rank)])
      rank.record.passes.push_back(run_pass(rank, pass));
    check_finished(rank);
    if (options.replicas > 1) all_reduce(rank);
    mailbox->finish(rank.thread);
    rank.record.virtual_end = rank.clock.virtual_now();
    rank.record.activation_buffers = static_cast<std::int64_t>(rank.pool.size());
  }

  [[noreturn]] void report_stuck() const {
    std::string what = "the step is stuck:";
    const int pipeline_channels = options.replicas * order.stages() * m * 2;
    int named = 0;
    for (std::size_t t = 0; t < ranks.size(); ++t) {
      const int c = mailbox->stuck_on()[t];
      if (c < 0 || named == 4) continue;
      what += std::string(named++ == 0 ? " rank " : "; rank ") + std::to_string(ranks[t].rank) + " waits for ";
      if (c >= pipeline_channels) {
        what += "the gradient all-reduce";
        continue;
      }
      const int stage = c / 2 / m % order.stages();
      what += std::string(c % 2 == 0 ? "the activation" : "the gradient") + " of micro-batch " +
              std::to_string(c / 2 % m) + " from stage " + std::to_string(stage);
    }
    throw InputError("schedule", what);
  }

  StepRecord summary(const std::vector<RankUsage>& usage) {
    StepRecord step;
    double begin = std::numeric_limits<double>::infinity(), end = 0;
    step.cpu_over_wall = 1;
    for (std::size_t t = 0; t < ranks.size(); ++t) {
      Rank& rank = ranks[t];
      if (!rank.record.passes.empty()) begin = std::min(begin, rank.record.passes.front().wall_start);
      step.virtual_makespan = std::max(step.virtual_makespan, rank.record.virtual_end);
      end = std::max(end, usage[t].wall_end);
      const double share = options.spin ? usage[t].cpu / (usage[t].wall_end - usage[t].wall_start)
                                        : (rank.clock.wall() > 0 ? rank.clock.cpu() / rank.clock.wall() : 1);
      step.cpu_over_wall = std::min(step.cpu_over_wall, share);
    }
    for (Rank& rank : ranks) {
      for (PassRecord& pass : rank.record.passes) {
        pass.wall_start -= begin;
        pass.wall_end -= begin;
      }
      step.ranks.push_back(std::move(rank.record));
    }
    step.wall_makespan = end - begin;
    step.checksum = options.digest ? checksum.load() : 0;
    return step;
  }

  StepRecord step() {
    for (Rank& rank : ranks) reset(rank);
    mailbox->begin_step();
    checksum = 0;
    waiting = true;
    const auto usage =
        team->run([&](int t) { run_rank(ranks[static_cast<std::size_t>(t)]); }, [&] { mailbox->abort(); });
    if (mailbox->stuck()) report_stuck();
    return summary(usage);
  }

  // ------------------------------------------------------------------------------------------------------------
  // calibration

  void calibrate_rank(Rank& rank, bool split, bool cpu, std::vector<std::vector<std::vector<double>>>& out) {
    const auto run = [&](PassKind kind, int stage, int microbatch) {
      const PassRecord record = run_pass(rank, Pass{kind, stage, microbatch, -1, -1});
      out[static_cast<std::size_t>(kind)][static_cast<std::size_t>(stage)].push_back(cpu ? record.cpu()
                                                                                         : record.wall());
      // Ranks that share cores find their caches used by others after every wait of a step: so they do here.
      if (!options.spin) std::this_thread::yield();
    };
    for (int s = 0; s < order.stages(); ++s) {
      if (rank_of(s) != rank.rank) continue;
      for (int i = 0; i < m; ++i) run(PassKind::forward, s, i);
      for (int i = 0; i < m; ++i) run(split ? PassKind::input_grad : PassKind::backward, s, i);
      for (int i = 0; split && i < m; ++i) run(PassKind::weight_grad, s, i);
    }
  }

  Samples calibrate(int rounds, bool split, bool cpu) {
    using ByKind = std::vector<std::vector<std::vector<double>>>;
    std::vector<ByKind> own(ranks.size(),
                            ByKind(4, std::vector<std::vector<double>>(static_cast<std::size_t>(order.stages()))));
    waiting = false;
    for (int round = 0; round < rounds; ++round) {
      for (Rank& rank : ranks) reset(rank);
      team->run(
          [&](int t) {
            calibrate_rank(ranks[static_cast<std::size_t>(t)], split, cpu, own[static_cast<std::size_t>(t)]);
          },
          [] {});
    }
    ByKind all(4, std::vector<std::vector<double>>(static_cast<std::size_t>(order.stages())));
    for (const ByKind& one : own) {
      for (std::size_t kind = 0; kind < 4; ++kind) {
        for (std::size_t s = 0; s < all[kind].size(); ++s)
          all[kind][s].insert(all[kind][s].end(), one[kind][s].begin(), one[kind][s].end());
      }
    }
    return {all[0], all[1], all[2], all[3]};
  }
};

PipelineExecutor::PipelineExecutor(const Order& order, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(order, options)) {}
PipelineExecutor::~PipelineExecutor() = default;

StepRecord PipelineExecutor::step() { return impl_->step(); }
PipelineExecutor::Samples PipelineExecutor::calibrate(int rounds, bool split, bool cpu) {
  return impl_->calibrate(rounds, split, cpu);
}
int PipelineExecutor::blocks() const { return impl_->blocks(); }
double PipelineExecutor::message_bytes() const { return static_cast<double>(impl_->narrow_bytes()); }

std::vector<float> PipelineExecutor::gradient(int block) const {
  const Impl& e = *impl_;
  for (int s = 0; s < e.order.stages(); ++s) {
    for (int i = 0; i < e.options.blocks_per_slot; ++i) {
      if (e.block_of(s, i) != block) continue;
      const auto& all = e.ranks[static_cast<std::size_t>(e.rank_of(s))].gradient;
      const auto begin = all.begin() + e.gradient_offset[static_cast<std::size_t>(s)] + i * e.shape.weights();
      return {begin, begin + e.shape.weights()};
    }
  }
  throw InputError("block", "there is no block " + std::to_string(block));
}

}  // namespace shardplan
