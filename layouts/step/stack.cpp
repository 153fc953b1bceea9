#include "layouts/step/stack.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "base/suggest.hpp"
#include "sim/schedules.hpp"

namespace shardplan {
namespace {

constexpr const char* kStacksFile = "data/stacks.json";
const char* constants_file(ConstantSet set) {
  return set == ConstantSet::all ? "data/step_constants.json" : "data/step_constants_half.json";
}

template <class E>
using WordList = std::initializer_list<std::pair<const char*, std::type_identity_t<E>>>;

template <class E>
E word_of(const Field& member, WordList<E> words) {
  const std::string text = member.text();
  std::vector<std::string> known;
  for (const auto& [name, value] : words) {
    if (text == name) return value;
    known.emplace_back(name);
  }
  member.fail("unknown word " + member.shown() + did_you_mean(text, known));
}

/// The member `key`, one of these words; what it was where there is none.
template <class E>
void read_word(const Field& f, const char* key, E& out, WordList<E> words) {
  if (const auto member = f.find(key)) out = word_of<E>(*member, words);
}

/// The same of a list of them.
template <class E>
void read_words(const Field& f, const char* key, std::vector<E>& out, WordList<E> words) {
  const auto list = f.find(key);
  if (!list) return;
  out.clear();
  for (std::size_t i = 0; i < list->size(); ++i) out.push_back(word_of<E>(list->item(i), words));
}

std::string known_word(const Field& f, const std::vector<std::string>& known) {
  const std::string text = f.text();
  if (std::find(known.begin(), known.end(), text) == known.end())
    f.fail("unknown word " + f.shown() + did_you_mean_or_list(text, known));
  return text;
}

std::vector<std::string> framework_words() {
  return {"megatron", "pytorch", "deepspeed", "nanotron", "internevo", "shardplan"};
}

std::vector<std::string> schedule_words() {
  std::vector<std::string> out;
  for (const ScheduleRow& row : schedules()) out.emplace_back(row.name);
  return out;
}

Field embedded(const char* name) {
  for (const EmbeddedFile& file : layouts_data())
    if (file.name == name) return Field::parse(file.text, name);
  throw InputError(name, "is not part of this program");
}

void read_into(Stack& s, const Field& f) {
  f.allow_only({"name",
                "source",
                "base",
                "framework",
                "host_code",
                "elementwise",
                "attention",
                "attention_dropout",
                "loss_bytes_per_logit",
                "fp32_accumulate",
                "grad_reduce_bytes",
                "overlap_grad_reduce",
                "overlap_param_gather",
                "bucket_bytes",
                "async_tp_backward",
                "tp_overlap",
                "p2p_slices",
                "p2p_overlap",
                "p2p_copies",
                "step_s",
                "fsdp_prefetch",
                "cuda_graphs",
                "optimizer_bytes_per_parameter",
                "sequence_parallel",
                "broadcast_root_s",
                "gather_slice_s",
                "balances_stages",
                "cp_by",
                "overlap_sharded_reduce",
                "schedules",
                "plan_tp_overlap",
                "plan_transports",
                "plan_ep_overlaps",
                "zero_stages"});
  s.name = f.at("name").text();
  s.source = f.at("source").text();
  const auto flag = [&](const char* key, bool& out) {
    if (const auto v = f.find(key)) out = v->boolean();
  };
  const auto number = [&](const char* key, double& out) {
    if (const auto v = f.find(key)) out = v->positive();
  };
  if (const auto v = f.find("framework")) s.framework = known_word(*v, framework_words());
  if (const auto v = f.find("host_code")) s.host_code = v->text();
  if (s.host_code.empty()) s.host_code = s.name;
  read_word(f, "elementwise", s.elementwise,
            {{"eager", Elementwise::eager},
             {"fused", Elementwise::fused},
             {"compiled", Elementwise::compiled},
             {"plain", Elementwise::plain}});
  read_word(f, "attention", s.attention,
            {{"fa2", AttentionLibrary::fa2},
             {"fa3", AttentionLibrary::fa3},
             {"cudnn", AttentionLibrary::cudnn},
             {"trtllm", AttentionLibrary::trtllm},
             {"triton", AttentionLibrary::triton},
             {"unfused", AttentionLibrary::unfused}});
  const auto overlap = [&](const char* key, TpOverlap& out) {
    read_word(f, key, out, {{"none", TpOverlap::none}, {"bulk", TpOverlap::bulk}, {"async", TpOverlap::async}});
  };
  overlap("tp_overlap", s.tp_overlap);
  if (f.has("tp_overlap")) s.plan_tp_overlap = s.tp_overlap;
  overlap("plan_tp_overlap", s.plan_tp_overlap);
  read_words(f, "plan_transports", s.plan_transports,
             {{"nccl", Transport::nccl}, {"deepep", Transport::deepep}, {"hybridep", Transport::hybridep}});
  read_words(f, "plan_ep_overlaps", s.plan_ep_overlaps,
             {{"none", EpOverlap::none}, {"shared", EpOverlap::shared}, {"1f1b", EpOverlap::batch_1f1b}});
  flag("attention_dropout", s.attention_dropout);
  flag("fp32_accumulate", s.fp32_accumulate);
  flag("overlap_grad_reduce", s.overlap_grad_reduce);
  flag("overlap_param_gather", s.overlap_param_gather);
  flag("async_tp_backward", s.async_tp_backward);
  flag("p2p_slices", s.p2p_slices);
  flag("p2p_overlap", s.p2p_overlap);
  flag("p2p_copies", s.p2p_copies);
  flag("cuda_graphs", s.cuda_graphs);
  flag("sequence_parallel", s.sequence_parallel);
  flag("balances_stages", s.balances_stages);
  read_word(f, "cp_by", s.cp_by,
            {{"ring", ContextParallel::ring},
             {"all-gather", ContextParallel::all_gather},
             {"ulysses", ContextParallel::ulysses}});
  flag("overlap_sharded_reduce", s.overlap_sharded_reduce);
  number("loss_bytes_per_logit", s.loss_bytes_per_logit);
  number("grad_reduce_bytes", s.grad_reduce_bytes);
  number("bucket_bytes", s.bucket_bytes);
  number("broadcast_root_s", s.broadcast_root_s);
  number("gather_slice_s", s.gather_slice_s);
  const auto known = [&](const char* key, double& out) {  // may be nothing
    const auto v = f.find(key);
    if (!v) return;
    out = v->number();
    if (out < 0) v->fail("must not be negative");
  };
  known("optimizer_bytes_per_parameter", s.optimizer_bytes_per_parameter);
  known("step_s", s.constants.step_s);
  if (const auto v = f.find("fsdp_prefetch")) s.fsdp_prefetch = static_cast<int>(v->count(0, 64));
  if (const auto v = f.find("schedules")) {
    s.schedules.clear();
    for (std::size_t i = 0; i < v->size(); ++i) s.schedules.push_back(known_word(v->item(i), schedule_words()));
  }
  if (const auto v = f.find("zero_stages")) {
    s.zero_stages.clear();
    for (std::size_t i = 0; i < v->size(); ++i) s.zero_stages.push_back(static_cast<int>(v->item(i).count(0, 3)));
  }
}

const std::map<std::string, Stack>& all_stacks(ConstantSet set) {
  const auto read = [](ConstantSet from) {
    std::map<std::string, Stack> out;
    const Field list = embedded(kStacksFile).at("stacks");
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Field f = list.item(i);
      Stack s;
      if (const auto base = f.find("base")) {
        const auto found = out.find(base->text());
        if (found == out.end()) base->fail("no stack of this name stands before it");
        s = found->second;
      }
      read_into(s, f);
      s.built_in = s.name;
      out[s.name] = s;
    }
    const Field document = embedded(constants_file(from));
    const Field constants = document.at("stacks"), hosts = document.at("hosts");
    const auto take = [](const std::optional<Field>& f, Stack& stack, bool of_host_code) {
      if (!f) return;
      for (const StackConstantRow& row : stack_constant_rows())
        if (const auto v = f->find(row.name); v && row.of_host_code == of_host_code)
          stack.constants.*row.member = v->positive();
    };
    for (auto& [name, stack] : out) {
      take(hosts.find(stack.host_code), stack, true);
      const auto f = constants.find(name);
      take(f, stack, false);
      if (!f) continue;
      if (const auto v = f->find("residual_sd")) stack.constants.residual_sd = v->positive();
      if (const auto v = f->find("residual_sd_host")) stack.constants.residual_sd_host = v->positive();
      if (const auto v = f->find("residual_sd_moe")) stack.constants.residual_sd_moe = v->positive();
      if (const auto releases = f->find("releases"))
        for (const std::string& release : releases->keys())
          stack.releases[release] = releases->at(release).at("release_factor").positive();
      if (const auto v = f->find("rows")) stack.constants.fit_rows = static_cast<int>(v->count());
    }
    return out;
  };
  static const std::map<std::string, Stack> all = read(ConstantSet::all), half = read(ConstantSet::half);
  return set == ConstantSet::all ? all : half;
}

}  // namespace

std::span<const StackConstantRow> stack_constant_rows() {
  using C = StackConstants;
  static constexpr std::array<StackConstantRow, 3> rows{{
      {"kernel_launch_s", "s", &C::kernel_launch_s, 1e-6, 1e-4, 0.8, true},
      {"step_s", "s", &C::step_s, 1e-4, 0.5, 0.4},
      {"compute_factor", "1", &C::compute_factor, 0.85, 1.3, 0.05},
  }};
  return rows;
}

std::span<const MachineConstantRow> machine_constant_rows() {
  using M = MachineConstants;
  static const std::vector<MachineConstantRow> rows{
      {"bf16", "1", MachineScope::gpu, [](M& m) -> double& { return m.bf16; }, 0.8, 3, 0.15},
      {"fp8", "1", MachineScope::gpu, [](M& m) -> double& { return m.fp8; }, 0.5, 2, 0.15},
      {"fp8_row", "1", MachineScope::gpu, [](M& m) -> double& { return m.fp8_row; }, 0.5, 3, 0.3},
      {"fp4", "1", MachineScope::gpu, [](M& m) -> double& { return m.fp4; }, 0.5, 2, 0.15},
      {"attention_fa2", "1", MachineScope::family, [](M& m) -> double& { return m.attention[0]; }, 0.7, 4, 0.3},
      {"attention_cudnn", "1", MachineScope::family, [](M& m) -> double& { return m.attention[2]; }, 0.7, 4, 0.3},
      {"attention_triton", "1", MachineScope::family, [](M& m) -> double& { return m.attention[4]; }, 0.7, 4, 0.3},
      {"attention_unfused", "1", MachineScope::family, [](M& m) -> double& { return m.attention[5]; }, 0.7, 4, 0.3},
      {"host_factor", "1", MachineScope::host, [](M& m) -> double& { return m.host_factor; }, 0.4, 2.5, 0.2},
      {"network_factor", "1", MachineScope::fabric, [](M& m) -> double& { return m.network_factor; }, 0.5, 3, 0.3},
      {"domain_factor", "1", MachineScope::fabric, [](MachineConstants& m) -> double& { return m.domain_factor; }, 0.5,
       3, 0.2},
      {"strided_nics", "1", MachineScope::fabric, [](M& m) -> double& { return m.strided_nics; }, 0.05, 1, 1},
      {"message_s", "s", MachineScope::fabric, [](M& m) -> double& { return m.message_s; }, 1e-5, 5e-2, 0.5},
  };
  return rows;
}

const StackConstantRow& release_constant_row() {
  static constexpr StackConstantRow row{"release_factor", "1", &StackConstants::release_factor, 0.8, 1.25, 0.04};
  return row;
}

void set_release(Stack& stack, const std::string& release) {
  stack.release = release;
  const auto found = stack.releases.find(release);
  stack.constants.release_factor = found == stack.releases.end() ? 1 : found->second;
}

std::string fabric_key(const Cluster& c) {
  return c.network.kind + "-" + std::to_string(std::llround(c.network_bytes_per_second_per_gpu() * 8e-9));
}

std::string family_key(const Gpu& gpu) {
  return !gpu.calibration.empty() ? gpu.calibration : (!gpu.sibling.empty() ? gpu.sibling : gpu.name);
}

namespace {

bool is_path(const std::string& name) {
  std::error_code error;
  return name.find('/') != std::string::npos || name.ends_with(".json") ||
         std::filesystem::is_regular_file(name, error);
}

/// The base's constants are kept, its spread is not: no run of this stack was ever measured.
Stack read_stack_file(const std::string& path, ConstantSet set) {
  const Field f = Field::read(path);
  if (!f.is_object()) f.fail("expected one stack as an object, got " + f.shown());
  if (f.has("stacks")) f.fail("a list of stacks: expected one object of it, with \"base\"");
  const auto base = f.find("base");
  if (!base)
    f.fail("\"base\" is missing: the built-in stack that this one differs from" +
           did_you_mean_or_list("", stack_names()));
  const std::string name = base->text();
  const auto found = all_stacks(set).find(name);
  if (found == all_stacks(set).end())
    base->fail("unknown stack " + base->shown() + did_you_mean_or_list(name, stack_names()));
  Stack s = found->second;
  read_into(s, f);
  if (all_stacks(set).contains(s.name))
    f.at("name").fail(f.at("name").shown() + " is a built-in stack: choose another name");
  s.constants.fit_rows = 0;
  return s;
}

}  // namespace

Stack load_stack(const std::string& name, const std::string& where, ConstantSet set) {
  const auto found = all_stacks(set).find(name);
  if (found != all_stacks(set).end()) return found->second;
  if (is_path(name)) return read_stack_file(name, set);
  throw InputError(where, "unknown stack \"" + name.substr(0, 60) + "\"" + did_you_mean_or_list(name, stack_names()));
}

std::vector<std::string> stack_names() {
  std::vector<std::string> names;
  for (const auto& [name, stack] : all_stacks(ConstantSet::all)) names.push_back(name);
  return names;
}

Field step_constants_document(ConstantSet set) { return embedded(constants_file(set)); }

MachineConstants unfitted_machine_constants(const Gpu& gpu, const KernelModel& kernels) {
  MachineConstants m;
  m.bf16 = 1 / kernels.sustained_fraction(DataType::bf16);
  const auto over_wide = [&](DataType type) { return 1 / kernels.sustained_fraction(type) / m.bf16; };
  if (gpu.peak(DataType::fp8) > 0) m.fp8 = m.fp8_row = m.fp4 = over_wide(DataType::fp8);
  if (gpu.peak(DataType::nvfp4) > 0) m.fp4 = over_wide(DataType::nvfp4);
  m.attention.fill(1);
  return m;
}

// Measured runs of a GPU below which a stack's spread on other GPUs says little about it.
constexpr std::int64_t kRunsOfAGpu = 5;

namespace {

/// The GPU whose hosts stand for this one's: itself where runs with experts were measured on it, else one that it
/// shares kernel tables with, or its sibling (H800 and H200 stand in H100's nodes).
std::string host_scope(const Field& machines, const Gpu& gpu) {
  const auto known = [&](const std::string& name) {
    const auto f = machines.find(name);
    return f && f->has("host_factor");
  };
  if (known(gpu.name)) return gpu.name;
  for (const std::string& tables : {gpu.calibration, gpu.sibling}) {
    if (tables.empty()) continue;
    for (const std::string& name : gpu_names())
      if (known(name) && load_gpu(name).calibration == tables) return name;
  }
  return gpu.name;
}

}  // namespace

MachineConstants machine_constants(const Cluster& cluster, const KernelModel& kernels, ConstantSet set) {
  const Gpu& gpu = cluster.gpu;
  MachineConstants m = unfitted_machine_constants(gpu, kernels);
  const Field machines = embedded(constants_file(set)).at("machines");
  for (const MachineConstantRow& row : machine_constant_rows()) {
    const auto f = machines.find(row.scope == MachineScope::gpu      ? gpu.name
                                 : row.scope == MachineScope::host   ? host_scope(machines, gpu)
                                 : row.scope == MachineScope::family ? family_key(gpu)
                                                                     : fabric_key(cluster));
    if (!f) continue;
    if (const auto v = f->find(row.name)) {
      row.member(m) = v->positive();
      const auto rows = f->find("rows");
      const auto count = rows ? rows->find(row.name) : std::nullopt;
      if (row.scope == MachineScope::gpu && count && count->count() >= kRunsOfAGpu) m.gpu_fitted = true;
      if (row.name == "network_factor") m.network_fitted = true;
    }
  }
  return m;
}

}  // namespace shardplan
