// Derivations that an expert writes on a whiteboard about one training step of Llama 3 70B on 512 H100s (TP8 x DP64,
// 8,192 tokens a micro-batch), through the step's own prices at the data sheet's rates. Where the written figure hides
// an assumption, the comment names it.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "layouts/memory.hpp"
#include "layouts/ranks.hpp"
#include "layouts/step/layer_cost.hpp"
#include "layouts/step/price.hpp"
#include "layouts/step/stage_cost.hpp"
#include "layouts/step/step.hpp"
#include "models/flops.hpp"
#include "models/load_model.hpp"
#include "models/parameters.hpp"

using namespace shardplan;

namespace {

const Model& llama70() {
  static const Model model = load_model("llama-3.1-70b");
  return model;
}
const Pricer& h100() {
  static const Pricer pricer(load_cluster("h100-sxm"), Rates::datasheet, Fidelity::table);
  return pricer;
}
constexpr double kSeq = 8192, kTokens = 8192;
constexpr double kPeak = 989e12;     // H100 SXM, BF16, without sparsity
constexpr double kNvlink = 450e9;    // bytes/s of one GPU, each direction
constexpr double kPort = 50e9;       // bytes/s of a 400 Gbit/s port
constexpr double kPsi = 70.5e9 / 8;  // parameters of a rank at TP8

/// A layout's question as the whiteboard asks it: gradients in BF16, every tensor-parallel collective in the open.
StepQuestion ask(const char* layout, std::int64_t batch = 64) {
  StepQuestion q;
  q.model = &llama70();
  q.pricer = &h100();
  q.layout = parse_layout(layout, 512, "--layout");
  q.workload.seq_len = 8192;
  q.workload.global_batch = batch;
  q.stack = load_stack("megatron-core", "--stack");
  q.stack.async_tp_backward = false;
  q.stack.tp_overlap = TpOverlap::none;
  q.stack.grad_reduce_bytes = 2;
  q.options.rates = Rates::datasheet;
  return q;
}

StageCost whole_model(const StepQuestion& q, const Groups& groups) {
  const auto stages = price_stages(q, groups, split_stages(q.layout, *q.model));
  REQUIRE(stages.size() == 1);
  return stages.front();
}
StageCost whole_model(const StepQuestion& q) { return whole_model(q, groups_of(q.layout, h100().cluster())); }

double seconds(Collective op, double bytes, GroupShape shape) {
  return h100().network().collective(op, bytes, shape).price.seconds;
}
GroupShape inside(int ranks) { return {ranks, ranks, static_cast<double>(ranks)}; }
/// One member a node, with the one port of its GPU.
GroupShape across(int ranks) { return {ranks, 1, 1}; }

/// The layers' tensor-parallel seconds of a micro-batch with this tensor group; embedding and head are left out.
double layer_tp(const StepQuestion& q, const GroupShape& tp) {
  Groups groups = groups_of(q.layout, h100().cluster());
  groups.tp = tp;
  const LayerCost layer = LayerPricer(q, groups).layer(q.model->layers.front(), false);
  return static_cast<double>(q.model->layers.size()) *
         (layer.forward.part(Part::tp) + layer.input_grad.part(Part::tp) + layer.weight_grad.part(Part::tp));
}

StepQuestion plain_tp(const char* layout) {
  StepQuestion q = ask(layout);
  q.layout.sp = false;
  return q;
}

/// 6 N per token at peak, over t tensor ranks.
double six_n_seconds(int t) { return six_n_per_token(llama70()) / t * kTokens / kPeak; }

}  // namespace

TEST_CASE("P1.15-P1.25, P2.01-P2.05: gradient traffic and arithmetic of a step", "[whiteboard]") {
  // P1.25: 438 ms of matrix products at peak, by 6 N. Hidden assumption: the embedding lookup counts as a product. The
  // priced products leave it out; attention scores come beside them.
  CHECK(six_n_seconds(8) == Approx(0.438).epsilon(0.001));
  const StepQuestion q = ask("tp8 dp64 zero0");
  const StageCost stage = whole_model(q);
  const double forward = stage.forward.part(Part::gemm), backward_in = stage.input_grad.part(Part::gemm),
               backward_w = stage.weight_grad.part(Part::gemm);
  const double layer_parameters = 80 * 855654400.0 - 80 * 2 * 8192;  // matrices of the layers
  CHECK(forward == Approx(2 * layer_parameters / 8 * kTokens / kPeak).epsilon(1e-6));
  CHECK(backward_in + backward_w == Approx(2 * forward).epsilon(1e-6));
  const double head = 6 * 128256.0 * 8192 / 8 * kTokens / kPeak;
  const double embedding = head;  // what 6 N counts beyond the priced products (norm weights: 1e-5 of it)
  CHECK(3 * forward + head + embedding == Approx(0.438).epsilon(0.001));

  // P2.01: psi = 8.81 G parameters a rank, 17.6 GB of BF16 gradient.
  const double gradient = 2 * stage.parameters.dense;
  CHECK(gradient == Approx(17.6e9).epsilon(0.003));
  CHECK(stage.parameters.dense == Approx(kPsi).epsilon(0.001));
  // P2.02, P1.15 / P2.07: a ring all-reduce moves 2 (d - 1) / d of the buffer: 30.8 GB at 8, 34.7 GB at 64 ranks.
  CHECK(seconds(Collective::all_reduce, gradient, across(8)) * kPort == Approx(30.8e9).epsilon(0.003));
  CHECK(seconds(Collective::all_reduce, gradient, across(64)) * kPort == Approx(34.7e9).epsilon(0.001));
  // P2.03: never more than twice the buffer, however many ranks (printed 35.2 there, 35.3 in P2.10: it is 35.25).
  CHECK(seconds(Collective::all_reduce, gradient, across(65536)) * kPort < 2 * gradient);
  CHECK(2 * gradient == Approx(35.25e9).epsilon(0.001));
  // P1.16, P2.14: 6 psi = 52.9 GB leaves out the (d - 1) / d that P1.15 applies; with it 52.05 GB.
  const double sharded = (2 * seconds(Collective::all_gather, gradient, across(64)) +
                          seconds(Collective::reduce_scatter, gradient, across(64))) *
                         kPort;
  CHECK(3 * gradient == Approx(52.9e9).epsilon(0.002));
  CHECK(sharded == Approx(52.05e9).epsilon(0.001));
  // P2.15: stage 3 moves half as much again as an all-reduce.
  CHECK(sharded / (seconds(Collective::all_reduce, gradient, across(64)) * kPort) == Approx(1.5).epsilon(1e-9));
  CHECK(sharded / kPort == Approx(1.05).epsilon(0.01));  // P1.27: of order a second
  // P2.05: buckets of 25 MB make 705 of the gradient.
  CHECK(gradient / 25e6 == Approx(705).epsilon(0.001));
  // P1.18, P3.17, P3.18, P1.26.
  const Cluster& c = h100().cluster();
  CHECK(c.gpu.nvlink_bytes_per_second.value / c.node.nic_bytes_per_second.value == Approx(9).epsilon(1e-9));
  CHECK(c.gpu.sms.value == 132);
  CHECK(512 / c.node.nvlink_domain == 64);
}

TEST_CASE("P1.06-P1.09: what one GPU would have to hold", "[whiteboard]") {
  const double states = 16 * static_cast<double>(count_parameters(llama70()).total);
  const double all = states + 80 * korthikanti_bytes(8192, 8192, 64, 8192, 1, false, true);
  CHECK(all == Approx(1.31e12).epsilon(0.0015));
  CHECK(all / h100().cluster().gpu.hbm_bytes.value == Approx(16.4).epsilon(0.002));
  CHECK(std::ceil(all / h100().cluster().gpu.hbm_bytes.value) == 17);
}

TEST_CASE("P2.06-P2.08: a gradient all-reduce that starts with the backward pass", "[whiteboard]") {
  const StepQuestion q = ask("tp8 dp64 zero0");
  const StageCost stage = whole_model(q);
  const double reduce = seconds(Collective::all_reduce, 2 * stage.parameters.dense, across(64));
  CHECK(reduce == Approx(0.694).epsilon(0.002));
  const double forward = six_n_seconds(8) / 3, backward = 2 * forward;
  CHECK(backward == Approx(0.292).epsilon(0.001));
  // "More than half the step is exposed" is 47.9 % of the step (57.9 % of the collective); and it assumes that the
  // first bucket is ready when the backward pass begins.
  CHECK((reduce - backward) / (forward + reduce) == Approx(0.479).epsilon(0.005));
  CHECK((reduce - backward) / reduce == Approx(0.579).epsilon(0.005));
  // The step: the collective is hidden by all of the backward pass but the first bucket's share, whatever fills it.
  const StepReport step = simulate_step(q);
  const double buckets = 64;
  CHECK(step.reduce_exposed_s == Approx(reduce - stage.backward_s * (1 - 1 / buckets)).epsilon(1e-6));
  // Only matrix products and the collective, as the whiteboard counts: 48.5 % with the first bucket's wait.
  StepQuestion bare = q;
  for (const Effect e : {Effect::tp_communication, Effect::elementwise, Effect::vocabulary})
    bare.options.without |= 1u << static_cast<unsigned>(e);
  const StageCost priced = whole_model(bare);
  const StepReport alone = simulate_step(bare);
  const double scores = priced.input_grad.part(Part::attention);
  const double exposed = alone.reduce_exposed_s + scores * (1 - 1 / buckets);
  CHECK(exposed / (priced.forward.part(Part::gemm) + reduce + (backward / buckets)) == Approx(0.49).epsilon(0.03));
}

TEST_CASE("P2.13: traffic of data parallelism in parameters: 2, 2, 2, 3 psi", "[whiteboard]") {
  const double psi_seconds = 2 * kPsi * 63 / 64 / kPort;
  const auto moved = [&](const char* layout) {
    StepQuestion q = ask(layout);
    q.stack.overlap_grad_reduce = q.stack.overlap_param_gather = false;
    const StepReport s = simulate_step(q);
    return (s.reduce_exposed_s + s.gather_exposed_s) / psi_seconds;
  };
  CHECK(moved("tp8 dp64 zero0") == Approx(2).epsilon(0.002));
  CHECK(moved("tp8 dp64 zero1") == Approx(2).epsilon(0.002));
  CHECK(moved("tp8 dp64 zero2") == Approx(2).epsilon(0.002));
  // Stage 3: gathered for the forward pass, gathered again for the backward pass, scattered, embedding and head like
  // the layers; the network-bound passes last as long as the traffic.
  StepQuestion q = ask("tp8 dp64 zero3");
  for (const Effect e : {Effect::tp_communication, Effect::elementwise, Effect::vocabulary})
    q.options.without |= 1u << static_cast<unsigned>(e);
  const StageCost stage = whole_model(q);
  CHECK((stage.forward_s + stage.backward_s) / psi_seconds == Approx(3).epsilon(0.01));
}

TEST_CASE("P2.09-P2.11, P2.16: what each ZeRO stage shards", "[whiteboard]") {
  MemoryOptions options;
  options.recipe = "whiteboard";
  options.rates = Rates::datasheet;
  options.traits = memory_traits("megatron-core");
  options.traits.vocab_multiple = 0;
  Workload w;
  w.seq_len = 8192;
  w.global_batch = 64;
  const auto rank = [&](const char* layout) {
    const MemoryReport r = memory_of(llama70(), h100().cluster(), parse_layout(layout, 512, "--layout"), w, options);
    return r.ranks.front();
  };
  const RankMemory none = rank("tp8 dp64 zero0"), one = rank("tp8 dp64 zero1"), three = rank("tp8 dp64 zero3");
  // Bytes a parameter that stage 1 shards: 12; stages 2 and 3 add 2 and 2.
  CHECK((none.of(MemoryTerm::optimizer) - one.of(MemoryTerm::optimizer)) / kPsi * 64 / 63 == Approx(12).epsilon(0.002));
  CHECK((none.of(MemoryTerm::weights) - three.of(MemoryTerm::weights)) / kPsi * 64 / 63 == Approx(2).epsilon(0.002));
  CHECK((none.of(MemoryTerm::gradients) - three.of(MemoryTerm::gradients)) / kPsi * 64 / 63 ==
        Approx(2).epsilon(0.002));
  // P2.10, P2.11: floors 4 psi = 35.3 GB and 2 psi = 17.6 GB as d grows.
  CHECK(one.states() - one.of(MemoryTerm::optimizer) == Approx(35.3e9).epsilon(0.003));
  CHECK(none.of(MemoryTerm::weights) == Approx(17.6e9).epsilon(0.003));
  // P2.16: "the optimizer's states are held 512 times" is true of pure data parallelism; with TP8 they are held 64
  // times: 512 ranks hold an eighth each.
  const double everywhere = 512 * none.of(MemoryTerm::optimizer);
  CHECK(everywhere / (12 * static_cast<double>(count_parameters(llama70()).total)) == Approx(64).epsilon(0.002));
}

TEST_CASE("P2.17, P2.18: a sharded block's gather against its forward pass", "[whiteboard]") {
  // 220 MB a block spreads embedding and head over the 80 blocks; a block alone is 213.9 MB.
  const double spread = 2 * kPsi / 80, block = 2 * 855654400.0 / 8;
  CHECK(spread == Approx(220e6).epsilon(0.003));
  CHECK(block == Approx(213.9e6).epsilon(0.001));
  const double gather = seconds(Collective::all_gather, spread, across(64));
  CHECK(gather == Approx(4.34e-3).epsilon(0.002));
  CHECK(six_n_seconds(8) / 3 / 80 == Approx(1.82e-3).epsilon(0.004));
  // Prefetching hides all gathers but the first only where the block computes for longer: here the network is 2.4 times
  // slower, so it does not.
  CHECK(gather / (six_n_seconds(8) / 3 / 80) == Approx(2.38).epsilon(0.003));
  StepQuestion q = ask("tp8 dp64 zero3");
  for (const Effect e : {Effect::tp_communication, Effect::elementwise, Effect::vocabulary})
    q.options.without |= 1u << static_cast<unsigned>(e);
  const double unit =
      LayerPricer(q, groups_of(q.layout, h100().cluster())).layer(llama70().layers[0], false).forward.seconds();
  // Norm weights lie whole on every tensor rank.
  const double local = local_parameters(llama70(), llama70().layers[0], q.layout).dense;
  CHECK(2 * local == Approx(block).epsilon(2e-4));
  const double pulled = seconds(Collective::all_gather, 2 * local, across(64));
  REQUIRE(pulled > unit);
  // Embedding and head are units of their own, whose passes take no time here.
  const double end = seconds(Collective::all_gather, 2.0 * 128256 * 8192 / 8, across(64));
  const StageCost slow = whole_model(q);
  CHECK(slow.forward.part(Part::fsdp) == Approx(80 * pulled + 2 * end - 80 * unit).epsilon(1e-9));
  // With 2.4 times the tokens (here four times) the claim holds: what the first block waits for is exposed.
  q.layout.mbs = 4;
  q.workload.global_batch = 256;
  const StageCost fast = whole_model(q);
  CHECK(fast.forward.part(Part::fsdp) == Approx(end + pulled).epsilon(1e-9));
}

TEST_CASE("P2.19: gradient accumulation shrinks the exposed share, asymptotically as 1 / k", "[whiteboard]") {
  const auto share = [](int k) {
    StepQuestion q = ask("tp8 dp64 zero0", 64LL * k);
    const StepReport s = simulate_step(q);
    return s.reduce_exposed_s / (s.busy_s + s.bubble_s + s.reduce_exposed_s);
  };
  // The step's own shares obey E / (k T + E): at k = 8 more than an eighth, and k share(k) tends to E / T.
  const double one = share(1), eight = share(8), many = share(256);
  CHECK(eight / one > 1.0 / 8);
  CHECK(eight == Approx(1 / (8 * (1 / one - 1) + 1)).epsilon(1e-6));
  CHECK(256 * many == Approx(1 / (1 / one - 1)).epsilon(0.01));
  // The whiteboard's figures, E = 402 ms and T = 438 ms: 0.215 of the share at k = 1.
  const double e = 0.694 - 2 * six_n_seconds(8) / 3, t = six_n_seconds(8);
  CHECK((e / (8 * t + e)) / (e / (t + e)) == Approx(0.215).epsilon(0.003));
}

TEST_CASE("P1.17-P1.19, P3.04-P3.09: tensor-parallel traffic of a micro-batch", "[whiteboard]") {
  const StepQuestion q = plain_tp("tp8 dp64 zero0");
  const double message = 2 * kTokens * 8192;
  CHECK(message == Approx(134.2e6).epsilon(0.001));
  const double one = seconds(Collective::all_reduce, message, inside(8));
  CHECK(one * kNvlink == Approx(234.9e6).epsilon(0.001));
  const double all = layer_tp(q, inside(8));
  CHECK(all / one == Approx(320).epsilon(1e-9));  // four a layer
  CHECK(all * kNvlink == Approx(75.2e9).epsilon(0.001));
  CHECK(all == Approx(0.167).epsilon(0.001));
  CHECK(all / six_n_seconds(8) == Approx(0.38).epsilon(0.005));
  // On one 400 Gbit/s port a GPU: 1.5 s, three and a half times the arithmetic.
  const double network = layer_tp(q, across(8));
  CHECK(network == Approx(1.5).epsilon(0.003));
  CHECK(network / six_n_seconds(8) == Approx(3.5).epsilon(0.025));
  // A ring of eight over nodes of eight does not run at one port's rate where eight ports serve it: hidden assumption,
  // one member a node.
  CHECK(layer_tp(q, {16, 8, 8}) == Approx(320 * 2.0 * 15 / 16 * message / (8 * kPort)).epsilon(1e-9));
}

TEST_CASE("P3.14: sequence parallelism moves the same bytes, if the sharded input is not gathered again",
          "[whiteboard]") {
  const StepQuestion whole = plain_tp("tp8 dp64 zero0"), sharded = ask("tp8 dp64 zero0");
  const Groups groups = groups_of(whole.layout, h100().cluster());
  const LayerCost a = LayerPricer(whole, groups).layer(llama70().layers[0], false);
  const LayerCost b = LayerPricer(sharded, groups).layer(llama70().layers[0], false);
  CHECK(b.forward.part(Part::tp) == Approx(a.forward.part(Part::tp)).epsilon(1e-9));
  // Megatron keeps only the sharded input and gathers it again for the weight gradient: two more all-gathers a layer
  // (half an all-reduce each) on the backward pass's two all-reduces.
  CHECK(b.input_grad.part(Part::tp) == Approx(1.5 * a.input_grad.part(Part::tp)).epsilon(1e-9));
  // P3.12: and it stores a third: 872 MB a layer fall to 285 MB.
  CHECK(korthikanti_bytes(8192, 8192, 64, 8192, 8, false, true) /
            korthikanti_bytes(8192, 8192, 64, 8192, 8, true, true) ==
        Approx(3).epsilon(0.025));
}

TEST_CASE("P3.15, P3.16: communication over computation for TP 2, 4, 8, 16", "[whiteboard]") {
  const auto share = [](int t, const GroupShape& shape) {
    const std::string layout = "tp" + std::to_string(t) + " dp" + std::to_string(512 / t) + " zero0";
    StepQuestion q = plain_tp(layout.c_str());
    q.workload.global_batch = 512 / t;
    return layer_tp(q, shape) / six_n_seconds(t);
  };
  CHECK(share(2, inside(2)) == Approx(0.05).epsilon(0.1));
  CHECK(share(4, inside(4)) == Approx(0.16).epsilon(0.03));
  CHECK(share(8, inside(8)) == Approx(0.38).epsilon(0.005));
  // Hidden assumption: sixteen GPUs in one NVLink domain. Over two nodes of eight with a port a GPU the ring runs at
  // 8 x 50 GB/s, not 450, at line rate.
  CHECK(share(16, inside(16)) == Approx(0.82).epsilon(0.005));
  CHECK(share(16, {16, 8, 8}) == Approx(0.82 * 450 / 400).epsilon(0.005));
  CHECK(llama70().layers.front().mlp.width / 32 == 896);
}

TEST_CASE("P4.01, P4.20, P1.20, P1.21: a stage boundary", "[whiteboard]") {
  const StepQuestion q = ask("tp8 pp4 dp16 zero0", 256);
  const StepReport step = simulate_step(q);
  CHECK(step.microbatches == 16);
  const double message = step.hop_s * kPort;
  CHECK(message == Approx(16.8e6).epsilon(0.002));
  CHECK(2 * message == Approx(33.6e6).epsilon(0.002));
  // Three orders of magnitude below tensor parallelism: 4480 times a message, 2240 times the pair.
  const double tp = layer_tp(plain_tp("tp8 dp64 zero0"), inside(8)) * kNvlink;
  CHECK(tp / message == Approx(4480).epsilon(1e-6));
  CHECK(tp / (2 * message) == Approx(2240).epsilon(1e-6));
  // Hidden assumption: the sequence is sharded over the tensor ranks; without it every rank sends the whole tensor.
  StepQuestion whole = q;
  whole.layout.sp = false;
  whole.stack.p2p_slices = false;
  CHECK(simulate_step(whole).hop_s / step.hop_s == Approx(8).epsilon(1e-9));
}

TEST_CASE("P4.16-P4.19: micro-batches for a bubble, and Llama 3's split", "[whiteboard]") {
  // P4.18: 126 layers with one taken from each end fill 16 stages of 8 slots.
  const Model model = load_model("llama-3.1-405b");
  const Layout layout = parse_layout("tp8 pp16 dp128 split=embed-loss-as-layers", 16384, "--layout");
  const std::vector<StageSlice> stages = split_stages(layout, model);
  REQUIRE(stages.size() == 16);
  for (std::size_t s = 0; s < stages.size(); ++s) CHECK(stages[s].layers == (s == 0 || s == 15 ? 7 : 8));
  // P4.19, P2.23: 1 x 16 x 128 = 2,048 sequences of 8,192: 16.8 M tokens.
  Workload w;
  w.seq_len = 8192;
  w.global_batch = 2048;
  CHECK(microbatches(layout, w) == 16);
  CHECK(static_cast<double>(w.global_batch * w.seq_len) == Approx(16.8e6).epsilon(0.002));
}
