// shardplan kernel: seconds of one kernel, and what they stand on.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/pieces.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"
#include "cli/output.hpp"
#include "hardware/kernel_choice.hpp"
#include "hardware/kernel_price.hpp"
#include "hardware/kernel_shapes.hpp"

namespace shardplan {

namespace {

/// Everything as typed, of all kernels.
struct Options {
  std::string gpu, dtype = "bf16", kv_dtype, library, pass = "forward", rates = "calibrated", format = "text";
  std::string m, n, k, batch = "1";
  std::string seq_len, kv_len, heads, kv_heads, head_dim, v_head_dim = "0", window = "0";
  std::string tokens, experts, bytes, kernel = "copy";
  bool full = false, dropout = false, fp32 = false;
  bool explain = false;
};

struct Answer {
  std::string what;  // "bf16 product 4096 x 4096 x 4096"
  Price price;
  KernelWork work;  // FLOPs and bytes of the whole kernel
  DataType type = DataType::bf16;
  KernelEvidence evidence;
};

std::int64_t count_at_least(const std::string& text, const char* option, std::int64_t least) {
  const std::int64_t n = parse_count(text, option);
  if (n < least || n > (std::int64_t{1} << 40))
    throw InputError(option, "must be between " + std::to_string(least) + " and 2^40");
  return n;
}

std::int64_t length_of(const std::string& text, const char* option) {
  const std::int64_t n = parse_binary_count(text, option);
  if (n < 1 || n > (std::int64_t{1} << 32)) throw InputError(option, "must be between 1 and 2^32");
  return n;
}

template <class E, std::size_t N>
E word_of(const std::string& text, const char* option, const std::array<std::pair<const char*, E>, N>& words) {
  std::vector<std::string> names;
  for (const auto& [name, value] : words) {
    if (text == name) return value;
    names.emplace_back(name);
  }
  throw InputError(option, "\"" + text + "\" is not known" + did_you_mean_or_list(text, names));
}

constexpr std::array<std::pair<const char*, GemmPass>, 3> kGemmPasses{
    {{"forward", GemmPass::forward}, {"input-grad", GemmPass::input_grad}, {"weight-grad", GemmPass::weight_grad}}};
constexpr std::array<std::pair<const char*, AttentionPass>, 2> kAttentionPasses{
    {{"forward", AttentionPass::forward}, {"backward", AttentionPass::backward}}};
constexpr std::array<std::pair<const char*, AttentionLibrary>, 7> kLibraries{{{"", AttentionLibrary::unspecified},
                                                                              {"fa2", AttentionLibrary::fa2},
                                                                              {"fa3", AttentionLibrary::fa3},
                                                                              {"cudnn", AttentionLibrary::cudnn},
                                                                              {"trtllm", AttentionLibrary::trtllm},
                                                                              {"triton", AttentionLibrary::triton},
                                                                              {"unfused", AttentionLibrary::unfused}}};

Answer price_gemm(const Options& o, const KernelModel& model) {
  if (!o.library.empty() && model.rates() == Rates::calibrated) {
    throw InputError("--library", "products have one library a GPU (cuBLAS through the measured stack); leave it out");
  }
  Gemm g;
  g.m = count_at_least(o.m, "-m", 1), g.n = count_at_least(o.n, "-n", 1), g.k = count_at_least(o.k, "-k", 1);
  g.batch = count_at_least(o.batch, "--batch", 1);
  g.type = parse_data_type(o.dtype, "--dtype");
  g.pass = word_of(o.pass, "--pass", kGemmPasses);
  g.accumulate_fp32 = o.fp32;
  Answer a;
  a.price = model.explain(g, a.evidence);
  a.work = gemm_work(g), a.type = g.type;
  a.what = o.dtype + " product, " + o.pass + ", m " + o.m + ", n " + o.n + ", k " + o.k +
           (g.batch > 1 ? ", batch " + o.batch : "");
  return a;
}

Answer price_attention(const Options& o, const KernelModel& model) {
  AttentionShape s;
  s.batch = count_at_least(o.batch, "--batch", 1);
  s.q_len = length_of(o.seq_len, "--seq-len");
  s.kv_len = o.kv_len.empty() ? s.q_len : length_of(o.kv_len, "--kv-len");
  s.heads = count_at_least(o.heads, "--heads", 1);
  s.kv_heads = o.kv_heads.empty() ? s.heads : count_at_least(o.kv_heads, "--kv-heads", 1);
  if (s.heads % s.kv_heads != 0) throw InputError("--kv-heads", "must divide --heads");
  s.head_dim = count_at_least(o.head_dim, "--head-dim", 1);
  s.v_head_dim = count_at_least(o.v_head_dim, "--v-head-dim", 0);
  s.window = o.window == "0" ? 0 : length_of(o.window, "--window");
  s.causal = !o.full, s.dropout = o.dropout;
  s.type = parse_data_type(o.dtype, "--dtype");
  if (!o.kv_dtype.empty()) s.kv_type = parse_data_type(o.kv_dtype, "--kv-dtype");
  s.pass = word_of(o.pass, "--pass", kAttentionPasses);
  const auto known =
      std::find_if(kLibraries.begin(), kLibraries.end(), [&](const auto& row) { return o.library == row.first; });
  if (known != kLibraries.end()) {
    s.library = known->second;
  } else {
    s.build = o.library;
  }
  Answer a;
  a.price = model.explain(s, a.evidence);
  a.work = attention_work(s), a.type = s.type;
  a.what = o.dtype + " attention, " + o.pass + (s.causal ? ", causal" : ", full") + ", " + std::to_string(s.batch) +
           " x " + std::to_string(s.q_len) + " tokens, " + std::to_string(s.heads) + " heads" +
           (s.kv_heads == s.heads ? "" : " (" + std::to_string(s.kv_heads) + " of K and V)") + " of " +
           std::to_string(s.head_dim);
  return a;
}

/// "--tokens 4096 --experts 8" = evenly; "--tokens 512,100,7" = these groups.
std::vector<std::int64_t> groups_of(const Options& o) {
  std::vector<std::int64_t> out;
  for (const std::string_view piece : pieces_of(o.tokens, ','))
    out.push_back(count_at_least(std::string(piece), "--tokens", 0));
  if (o.experts.empty()) return out;
  if (out.size() != 1)
    throw InputError("--experts", "with a list of groups in --tokens their number is the number of experts");
  const std::int64_t total = out.front(), experts = count_at_least(o.experts, "--experts", 1);
  if (experts > 100'000) throw InputError("--experts", "at most 100000");
  out.clear();
  for (std::int64_t e = 0; e < experts; ++e) out.push_back(total * (e + 1) / experts - total * e / experts);
  return out;
}

Answer price_grouped(const Options& o, const KernelModel& model) {
  const std::vector<std::int64_t> tokens = groups_of(o);
  GroupedGemm g;
  g.tokens = tokens;
  g.n = count_at_least(o.n, "-n", 1), g.k = count_at_least(o.k, "-k", 1);
  g.type = parse_data_type(o.dtype, "--dtype");
  g.pass = word_of(o.pass, "--pass", kGemmPasses);
  g.accumulate_fp32 = o.fp32;
  g.build = o.library;
  Answer a;
  a.price = model.explain(g, a.evidence);
  a.work = grouped_features(g).work;
  a.work.flops = 2 * grouped_features(g).layer.rows * double(g.n) * double(g.k);
  a.type = g.type;
  a.what = o.dtype + " grouped product, " + o.pass + ", " + std::to_string(tokens.size()) + " experts, n " + o.n +
           ", k " + o.k;
  return a;
}

Answer price_memory(const Options& o, const KernelModel& model) {
  const double bytes = parse_bytes(o.bytes, "--bytes");
  std::vector<std::string> names(kMemoryKernelNames.begin(), kMemoryKernelNames.end());
  const auto found = std::find(names.begin(), names.end(), o.kernel);
  if (found == names.end())
    throw InputError("--kernel", "\"" + o.kernel + "\" is not known" + did_you_mean_or_list(o.kernel, names));
  Answer a;
  a.price = model.explain(static_cast<MemoryKernel>(found - names.begin()), bytes, a.evidence);
  a.work = {0, bytes};
  a.what = o.kernel + " of " + text_of_decimal_bytes(bytes) + " read and written";
  return a;
}

struct Limits {
  double roofline = 0;
  const char* bound = "latency";
};

/// Which of the datasheet's rates binds; latency where both stay below half of the launch floor.
Limits limits_of(const Answer& a, const KernelModel& model, const KernelModel& datasheet) {
  const double peak = peak_of(datasheet.gpu(), a.type), bandwidth = datasheet.gpu().hbm_bytes_per_second.value;
  const double compute = peak > 0 ? a.work.flops / peak : 0, memory = a.work.bytes / bandwidth;
  Limits out{std::max(compute, memory), compute > memory ? "compute" : "memory"};
  if (out.roofline < 0.5 * model.launch_floor()) out.bound = "latency";
  return out;
}

nlohmann::ordered_json json_of(const KernelEvidence& e) {
  if (e.table == nullptr) return nullptr;
  const KernelTable& t = *e.table;
  nlohmann::ordered_json out{
      {"kernel", kKernelClassNames[static_cast<std::size_t>(t.kernel)]},
      {"dtype", data_type_name(t.type)},
      {"library", t.library},
      {"source", t.source},
      {"date", t.date},
      {"outside", e.outside},
      {"ratio", e.ratio},
      {"form",
       {{"compute", t.form.compute},
        {"memory", t.form.memory},
        {"fixed_s", t.form.fixed},
        {"exponent", t.form.exponent}}},
      {"left_out", {{"n", t.left_out.n}, {"mape", t.left_out.mape}, {"coverage_80", t.left_out.coverage_80}}}};
  if (e.fused_s > 0) {
    out["run_as"] = e.loop ? "loop" : "fused";
    out["fused_s"] = e.fused_s;
    out["loop_s"] = e.loop_s;
  }
  auto& points = out["neighbours"] = nlohmann::ordered_json::array();
  if (t.grid.empty()) return out;
  for (const LogGrid::Corner& corner : t.grid.corners(e.logs)) {
    nlohmann::ordered_json point;
    for (std::size_t a = 0; a < t.grid.rank(); ++a) point[t.grid.axes()[a].name] = corner.at[a];
    point[t.ratios ? "measured_over_form" : "time_s"] = std::exp(t.grid.values()[corner.index]);
    point["weight"] = corner.weight;
    point["measured"] = t.grid.is_measured(corner.at);
    points.push_back(point);
  }
  return out;
}

/// One point of the grid alone makes the answer.
bool on_node(const KernelEvidence& e) {
  for (const LogGrid::Corner& corner : e.table->grid.corners(e.logs))
    if (corner.weight > 1 - 1e-6) return e.outside == 0;
  return false;
}

void print_evidence(const KernelEvidence& e) {
  if (e.table == nullptr) {
    std::printf("stands on  a sum of other kernels, or the datasheet alone\n");
    return;
  }
  const KernelTable& t = *e.table;
  if (e.fused_s > 0)
    std::printf("run as     %s: one fused kernel would take %s, the experts one after the other %s%s\n",
                e.loop ? "a loop of single products" : "one fused kernel", text_of_seconds(e.fused_s).c_str(),
                text_of_seconds(e.loop_s).c_str(), e.loop ? " (below: its largest group)" : "");
  std::printf("stands on  table %s %s %s\n", std::string(kKernelClassNames[static_cast<std::size_t>(t.kernel)]).c_str(),
              std::string(data_type_name(t.type)).c_str(), t.library.c_str());
  std::printf("source     %s (%s)\n", t.source.c_str(), t.date.c_str());
  std::printf("form       t0 %s + ((F / %.2f peak)^p + (B / %.2f bandwidth)^p)^(1/p), p = %.2f\n",
              text_of_seconds(t.form.fixed).c_str(), t.form.compute, t.form.memory, t.form.exponent);
  if (t.left_out.n > 0) {
    std::printf("left out   mean error %s over %d rows predicted without themselves; %s of them inside the interval\n",
                text_of_percent(t.left_out.mape).c_str(), t.left_out.n,
                text_of_percent(t.left_out.coverage_80).c_str());
  }
  if (t.grid.empty()) return;
  if (on_node(e))
    std::printf(
        "node       the shape is a node of the table: a smooth fit through the measured rows around it, not a row\n");
  if (e.outside > 0)
    std::printf("outside    %.1f doublings from the measured region: nodes there continue its edge by the form\n",
                e.outside / std::log(2.0));
  std::printf("neighbours");
  for (const LogGrid::Corner& corner : t.grid.corners(e.logs)) {
    std::printf("%s", corner.index == t.grid.corners(e.logs).front().index ? " " : "           ");
    for (std::size_t a = 0; a < t.grid.rank(); ++a)
      std::printf("%s %s  ", t.grid.axes()[a].name.c_str(), text_of_number(corner.at[a], 6).c_str());
    const double value = std::exp(t.grid.values()[corner.index]);
    std::printf("%s  weight %.2f\n",
                t.ratios ? ("measured over form " + text_of_number(value, 3)).c_str() : text_of_seconds(value).c_str(),
                corner.weight);
  }
}

void print(const Options& o, const Answer& a, const KernelModel& model, const KernelModel& datasheet) {
  const Limits limits = limits_of(a, model, datasheet);
  const double efficiency = a.price.seconds > 0 ? limits.roofline / a.price.seconds : 0;
  if (o.format == "json") {
    nlohmann::ordered_json out{{"gpu", model.gpu().name},
                               {"kernel", a.what},
                               {"rates", o.rates},
                               {"time_s", a.price.seconds},
                               {"low_s", a.price.low},
                               {"high_s", a.price.high},
                               {"flops", a.work.flops},
                               {"bytes", a.work.bytes},
                               {"bound", limits.bound},
                               {"efficiency", efficiency},
                               {"basis", basis_name(a.price.basis)}};
    if (a.evidence.fused_s > 0) out["run_as"] = a.evidence.loop ? "loop of single products" : "one fused kernel";
    if (o.explain) out["evidence"] = json_of(a.evidence);
    return print_json(out);
  }
  std::printf("%s on %s, %s rates: %s\n", a.what.c_str(), model.gpu().name.c_str(), o.rates.c_str(),
              o.rates == "datasheet" ? "published peaks, no launch, no efficiency"
                                     : "one launch in a full queue, a burst (no sustained-power factor)");
  std::printf("time       %s, 80 %% between %s and %s\n", text_of_seconds(a.price.seconds).c_str(),
              text_of_seconds(a.price.low).c_str(), text_of_seconds(a.price.high).c_str());
  if (a.work.flops > 0)
    std::printf("rate       %s\n", text_of_flops_per_second(a.work.flops / a.price.seconds).c_str());
  std::printf("bandwidth  %s of the least traffic, %s\n",
              text_of_bytes_per_second(a.work.bytes / a.price.seconds).c_str(),
              text_of_decimal_bytes(a.work.bytes).c_str());
  std::printf("bound      %s, %s of the datasheet's limit\n", limits.bound, text_of_percent(efficiency).c_str());
  const bool node = a.price.basis == Basis::interpolated && a.evidence.table != nullptr && !(a.evidence.fused_s > 0) &&
                    !a.evidence.table->grid.empty() && on_node(a.evidence);
  std::printf("basis      %s%s%s\n", std::string(basis_name(a.price.basis)).c_str(),
              node ? ", at a node of the table (nodes are smooth fits of measured rows)" : "",
              !(a.evidence.fused_s > 0) ? ""
              : a.evidence.loop         ? ", as a loop of single products, which is faster here than the fused kernel"
                                        : ", as one fused kernel");
  if (o.explain) print_evidence(a.evidence);
}

using Pricer = Answer (*)(const Options&, const KernelModel&);

void run(const Options& o, Pricer price) {
  const Gpu gpu = load_cluster(o.gpu).gpu;
  const Rates rates = o.rates == "datasheet" ? Rates::datasheet : Rates::calibrated;
  const KernelModel model(gpu, rates), datasheet(gpu, Rates::datasheet);
  print(o, price(o, model), model, datasheet);
}

CLI::App* add_kind(CLI::App& parent, const char* name, const char* about, Pricer price, bool explain,
                   std::shared_ptr<Options>& options) {
  options = std::make_shared<Options>();
  options->explain = explain;
  CLI::App* verb = parent.add_subcommand(name, about);
  verb->set_help_flag("--help", "print this help");
  verb->add_option("--gpu,--cluster", options->gpu, "GPU or cluster")->required();
  verb->add_option("--rates", options->rates, "calibrated or datasheet")
      ->check(CLI::IsMember({"calibrated", "datasheet"}));
  add_format_option(*verb, options->format);
  verb->callback([options, price] { run(*options, price); });
  return verb;
}

void add_dtype(CLI::App& verb, Options& o) {
  verb.add_option("--dtype", o.dtype, "fp32 tf32 fp16 bf16 fp8 fp8-row fp8-block mxfp8 nvfp4 int8");
}

void add_gemm(CLI::App& parent, bool explain) {
  std::shared_ptr<Options> o;
  CLI::App* verb = add_kind(parent, "gemm", "A matrix product", price_gemm, explain, o);
  add_dtype(*verb, *o);
  verb->add_option("-m", o->m, "rows: tokens")->required();
  verb->add_option("-n", o->n, "columns: output features of the forward product")->required();
  verb->add_option("-k", o->k, "depth: input features of the forward product")->required();
  verb->add_option("--batch", o->batch, "independent copies");
  verb->add_option("--pass", o->pass, "forward, input-grad or weight-grad");
  verb->add_flag("--accumulate-fp32", o->fp32, "the weight gradient adds into an FP32 buffer");
  verb->add_option("--library", o->library, "kernel library");
  verb->footer("Example:\n  shardplan kernel gemm --gpu h100-sxm --dtype bf16 -m 8192 -n 8192 -k 8192");
}

void add_attention(CLI::App& parent, bool explain) {
  std::shared_ptr<Options> o;
  CLI::App* verb = add_kind(parent, "attention", "Self-attention of one rank", price_attention, explain, o);
  add_dtype(*verb, *o);
  verb->add_option("--batch", o->batch, "sequences");
  verb->add_option("--seq-len", o->seq_len, "queries of a sequence (k = 1,024)")->required();
  verb->add_option("--kv-len", o->kv_len, "keys of a sequence; default --seq-len");
  verb->add_option("--heads", o->heads, "query heads of this rank")->required();
  verb->add_option("--kv-heads", o->kv_heads, "KV heads of this rank; default --heads");
  verb->add_option("--head-dim", o->head_dim, "size of a head of Q and K")->required();
  verb->add_option("--v-head-dim", o->v_head_dim, "size of a head of V; 0 = --head-dim");
  verb->add_option("--window", o->window, "keys that a query sees at most; 0 = all");
  verb->add_option("--kv-dtype", o->kv_dtype, "type of cached K and V; default --dtype");
  verb->add_option("--pass", o->pass, "forward or backward");
  verb->add_option("--library", o->library,
                   "fa2 fa3 cudnn trtllm triton unfused, or a table's name; default the GPU's first");
  verb->add_flag("--full", o->full, "no causal mask");
  verb->add_flag("--dropout", o->dropout, "unfused only: one more pass over the scores");
  verb->footer(
      "Example:\n  shardplan kernel attention --gpu h100-sxm --seq-len 8k --heads 32 --kv-heads 8 --head-dim 128");
}

void add_grouped(CLI::App& parent, bool explain) {
  std::shared_ptr<Options> o;
  CLI::App* verb = add_kind(parent, "grouped-gemm", "One product of a rank's experts", price_grouped, explain, o);
  add_dtype(*verb, *o);
  verb->add_option("--tokens", o->tokens, "tokens of each expert, 512,100,7; or their sum with --experts")->required();
  verb->add_option("--experts", o->experts, "local experts that share --tokens evenly");
  verb->add_option("-n", o->n, "columns: output features of the forward product")->required();
  verb->add_option("-k", o->k, "depth: input features of the forward product")->required();
  verb->add_option("--pass", o->pass, "forward, input-grad or weight-grad");
  verb->add_flag("--accumulate-fp32", o->fp32, "the weight gradient adds into an FP32 buffer");
  verb->add_option("--library", o->library, "a table's name; default the GPU's first");
  verb->footer("Example:\n  shardplan kernel grouped-gemm --gpu h100-sxm --tokens 16384 --experts 8 -n 4096 -k 7168");
}

void add_copy(CLI::App& parent, bool explain) {
  std::shared_ptr<Options> o;
  CLI::App* verb = add_kind(parent, "copy", "A memory-bound kernel", price_memory, explain, o);
  verb->add_option("--bytes", o->bytes, "bytes read and written")->required();
  verb->add_option("--kernel", o->kernel,
                   "norm rotary activation add permute cast optimizer cross_entropy embedding copy");
  verb->footer("Example:\n  shardplan kernel copy --gpu h100-sxm --bytes 100MB");
}

void add_kinds(CLI::App& parent, bool explain) {
  add_gemm(parent, explain);
  add_attention(parent, explain);
  add_grouped(parent, explain);
  add_copy(parent, explain);
}

}  // namespace

void add_kernel(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("kernel", "Seconds of one kernel on one GPU");
  verb->require_subcommand(1);
  add_kinds(*verb, false);
  CLI::App* explain = verb->add_subcommand("explain", "The same, with the measurements that the answer stands on");
  explain->require_subcommand(1);
  add_kinds(*explain, true);
  verb->footer("Example:\n  shardplan kernel explain gemm --gpu h100-sxm --dtype bf16 -m 8192 -n 8192 -k 8192");
}

}  // namespace shardplan
