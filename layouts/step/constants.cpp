#include "layouts/step/constants.hpp"

#include <array>

#include "hardware/cluster.hpp"

namespace shardplan {

namespace {

struct Meaning {
  std::string_view name, text;
};
constexpr std::array kMeanings = {
    Meaning{"bf16", "seconds of 16-bit matrix products in a hot step over the kernel tables'"},
    Meaning{"fp8", "FP8 products: the same, over that of 16-bit ones"},
    Meaning{"fp8_row", "FP8 products with a scale a row: the same, over that of 16-bit ones"},
    Meaning{"fp4", "FP4 products: the same, over that of 16-bit ones"},
    Meaning{"attention_fa2", "seconds of FlashAttention 2 over the tables' x bf16"},
    Meaning{"attention_cudnn", "seconds of cuDNN's fused attention over the tables' x bf16"},
    Meaning{"attention_triton", "seconds of Triton's FlashAttention over the tables' x bf16"},
    Meaning{"attention_unfused", "seconds of unfused attention in a step over its memory traffic's"},
    Meaning{"host_factor", "host seconds of an operator on this GPU's hosts over those of the mean host"},
    Meaning{"network_factor", "seconds of collectives between nodes over the network model's"},
    Meaning{"strided_nics", "NICs that a group with some of a node's GPUs reaches of each member after its first"},
    Meaning{"domain_factor", "seconds of collectives inside a node over the network model's"},
    Meaning{"message_s", "fixed seconds of one pipeline message between nodes"},
    Meaning{"kernel_launch_s", "host seconds from one operator to the next, of all stacks that this code runs"},
    Meaning{"step_s", "host seconds a step that nothing hides"},
    Meaning{"compute_factor", "device seconds of this stack over the kernel tables'"},
    Meaning{"release_factor", "device seconds of this release over the stack's others"},
    Meaning{"residual_sd", "spread of ln(measured / predicted) on dense runs: the interval's"},
    Meaning{"residual_sd_host", "the same on dense runs that host launches hold"},
    Meaning{"residual_sd_moe", "the same on runs with experts"},
};

std::string_view meaning_of(std::string_view name) {
  for (const Meaning& m : kMeanings)
    if (m.name == name) return m.text;
  return "";
}

constexpr std::string_view kind_of(MachineScope scope) {
  return scope == MachineScope::gpu      ? "gpu"
         : scope == MachineScope::host   ? "host"
         : scope == MachineScope::family ? "gpu-family"
                                         : "fabric";
}

/// Constants of a scope before any fit; nothing where no GPU of the program belongs to it.
std::optional<MachineConstants> unfitted(MachineScope scope, const std::string& name) {
  if (scope == MachineScope::fabric) return MachineConstants{};
  for (const std::string& gpu_name : gpu_names()) {
    const Gpu gpu = load_cluster(gpu_name).gpu;
    if ((scope == MachineScope::family ? family_key(gpu) : gpu.name) == name)
      return unfitted_machine_constants(gpu, KernelModel(gpu, Rates::calibrated));
  }
  return {};
}

std::optional<int> rows_of(const Field& f) {
  const auto n = f.find("rows");
  return n ? std::optional<int>(static_cast<int>(n->count(0, 1 << 30))) : std::nullopt;
}

void add_machine(std::vector<FittedConstant>& out, const std::string& scope, const Field& f) {
  const auto rows = f.find("rows");
  for (const MachineConstantRow& row : machine_constant_rows()) {
    const auto value = f.find(row.name);
    if (!value) continue;
    FittedConstant c{kind_of(row.scope), scope, row.name,  row.unit, meaning_of(row.name),
                     value->positive(),  {},    row.least, row.most, {}};
    if (auto before = unfitted(row.scope, scope)) c.neutral = row.member(*before);
    if (rows)
      if (const auto n = rows->find(row.name)) c.rows = static_cast<int>(n->count(0, 1 << 30));
    out.push_back(std::move(c));
  }
}

/// The constants of a stack, or those that all stacks of a host code share.
void add_rows(std::vector<FittedConstant>& out, std::string_view kind, const std::string& scope, const Field& f,
              std::optional<int> rows) {
  for (const StackConstantRow& row : stack_constant_rows())
    if (const auto v = f.find(row.name))
      out.push_back({kind, scope, row.name, row.unit, meaning_of(row.name), v->positive(), StackConstants{}.*row.member,
                     row.least, row.most, rows});
}

void add_stack(std::vector<FittedConstant>& out, const std::string& scope, const Field& f) {
  const std::optional<int> rows = rows_of(f);
  const StackConstants before;
  add_rows(out, "stack", scope, f, rows);
  if (const auto releases = f.find("releases")) {
    const StackConstantRow& row = release_constant_row();
    for (const std::string& release : releases->keys()) {
      const Field of = releases->at(release);
      out.push_back({"release", scope + " " + release, row.name, row.unit, meaning_of(row.name),
                     of.at(row.name).positive(), before.*row.member, row.least, row.most,
                     static_cast<int>(of.at("rows").count(1, 1 << 30))});
    }
  }
  const auto spread = [&](const char* name, double neutral) {
    if (const auto v = f.find(name))
      out.push_back({"stack", scope, name, "1", meaning_of(name), v->positive(), neutral, 0, 0, rows});
  };
  spread("residual_sd", before.residual_sd);
  spread("residual_sd_host", before.residual_sd_host);
  spread("residual_sd_moe", before.residual_sd_moe);
}

}  // namespace

std::vector<FittedConstant> fitted_constants(ConstantSet set) {
  std::vector<FittedConstant> out;
  const Field document = step_constants_document(set);
  const Field machines = document.at("machines"), hosts = document.at("hosts"), stacks = document.at("stacks");
  for (const std::string& name : machines.keys()) add_machine(out, name, machines.at(name));
  for (const std::string& name : hosts.keys())
    add_rows(out, "host-code", name, hosts.at(name), rows_of(hosts.at(name)));
  for (const std::string& name : stacks.keys()) add_stack(out, name, stacks.at(name));
  return out;
}

}  // namespace shardplan
