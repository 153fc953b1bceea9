#include "layouts/step/evidence.hpp"

#include "base/field.hpp"
#include "layouts/step/price.hpp"

namespace shardplan {
namespace {

/// Member `name` of `rows` in a scope of the constants' file; 0 where any of them is not there.
int runs_of(const Field& machines, const std::string& scope, const std::string& name) {
  const auto found = machines.find(scope);
  const auto rows = found ? found->find("rows") : std::nullopt;
  const auto count = rows ? rows->find(name) : std::nullopt;
  return count ? static_cast<int>(count->count(0, 1 << 30)) : 0;
}

/// The constant of narrow products over 16-bit ones, "" for wide ones.
std::string narrow_constant(DataType type) {
  if (!StepPricer::narrow(type)) return "";
  return type == DataType::nvfp4 ? "fp4" : type == DataType::fp8_row ? "fp8_row" : "fp8";
}

std::string attention_constant(AttentionLibrary library) {
  switch (library) {
    case AttentionLibrary::fa2:
      return "attention_fa2";
    case AttentionLibrary::cudnn:
      return "attention_cudnn";
    case AttentionLibrary::triton:
      return "attention_triton";
    case AttentionLibrary::unfused:
      return "attention_unfused";
    default:
      return "";
  }
}

const char* spread_of(Scatter s) {
  return s == Scatter::moe ? "residual_sd_moe" : s == Scatter::host ? "residual_sd_host" : "residual_sd";
}

double spread_in(const StackConstants& c, Scatter s) {
  return s == Scatter::moe ? c.residual_sd_moe : s == Scatter::host ? c.residual_sd_host : c.residual_sd;
}

}  // namespace

Evidence evidence_of(const StepQuestion& q, const StepReport& step) {
  Evidence out;
  if (q.options.rates == Rates::datasheet) return out;
  const Cluster& cluster = q.pricer->cluster();
  const Field document = step_constants_document(ConstantSet::all);
  const Field machines = document.at("machines"), stacks = document.at("stacks");
  const auto add = [&](const std::string& scope, const std::string& name) {
    if (!name.empty()) out.rows.push_back({scope, name, runs_of(machines, scope, name)});
  };
  add(cluster.gpu.name, "bf16");
  add(cluster.gpu.name, narrow_constant(q.workload.precision));
  add(family_key(cluster.gpu), attention_constant(q.stack.attention));
  const bool spans = q.layout.gpus() > cluster.node.nvlink_domain;
  if (q.layout.gpus() > 1) add(fabric_key(cluster), spans ? "network_factor" : "domain_factor");
  out.rows.push_back({q.stack.name, "stack", q.stack.constants.fit_rows});
  out.kind = step.scatter == Scatter::moe    ? "with experts"
             : step.scatter == Scatter::host ? "held by the host"
                                             : "dense";
  out.left_out_sd = spread_in(q.stack.constants, step.scatter);
  const auto measured = [&](const std::string& name) {
    const auto f = stacks.find(name);
    return f && f->has(spread_of(step.scatter));
  };
  out.left_out_measured = measured(q.stack.name);
  if (!out.left_out_measured) {
    for (const std::string& name : stack_names())
      if (measured(name) && load_stack(name, "stack").framework == q.stack.framework)
        out.measured_stacks.push_back(name);
  }
  out.wider_for = step.wider_for;
  return out;
}

}  // namespace shardplan
