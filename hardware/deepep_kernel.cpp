#include "hardware/deepep_kernel.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"

namespace shardplan {

namespace {

constexpr std::string_view kFolder = "data/deepep/";

/// p-norm of values >= 0; p < 1 more than adds, p -> infinity takes the largest.
double norm(double p, std::initializer_list<double> values) {
  const double most = std::max(values);
  if (!(most > 0)) return 0;
  double sum = 0;
  for (const double v : values) sum += v > 0 ? std::pow(v / most, p) : 0;
  return most * std::pow(sum, 1 / p);
}

using Names = std::array<const char*, 12>;
constexpr Names kNormalNames = {
    "latency_s",   "latency_byte_s", "latency_copy_byte_s", "token_s",          "token_byte_s", "copy_s",
    "copy_byte_s", "other_s",        "other_byte_s",        "link_bytes_per_s", "sharp",        "join"};
constexpr std::array<double NormalKernel::*, 12> kNormalMembers = {
    &NormalKernel::latency,   &NormalKernel::latency_byte, &NormalKernel::latency_copy_byte,
    &NormalKernel::token,     &NormalKernel::token_byte,   &NormalKernel::copy,
    &NormalKernel::copy_byte, &NormalKernel::other,        &NormalKernel::other_byte,
    &NormalKernel::link,      &NormalKernel::sharp,        &NormalKernel::join};
constexpr Names kLowNames = {"latency_s",     "latency_byte_s",   "expert_s",     "choice_s",
                             "choice_byte_s", "token_s",          "token_byte_s", "copy_s",
                             "copy_byte_s",   "link_bytes_per_s", "sharp",        "join"};
constexpr std::array<double LowLatencyKernel::*, 12> kLowMembers = {
    &LowLatencyKernel::latency,    &LowLatencyKernel::latency_byte, &LowLatencyKernel::expert,
    &LowLatencyKernel::choice,     &LowLatencyKernel::choice_byte,  &LowLatencyKernel::token,
    &LowLatencyKernel::token_byte, &LowLatencyKernel::copy,         &LowLatencyKernel::copy_byte,
    &LowLatencyKernel::link,       &LowLatencyKernel::sharp,        &LowLatencyKernel::join};

const Names& names_of(const NormalKernel&) { return kNormalNames; }
const Names& names_of(const LowLatencyKernel&) { return kLowNames; }

template <class Kernel>
Kernel read_kernel(const Field& f) {
  Kernel k;
  const Names& names = names_of(k);
  f.allow_only(std::vector<std::string>(names.begin(), names.end()));
  const auto members = members_of(k);
  for (std::size_t i = 0; i < members.size(); ++i) {
    k.*members[i] = f.at(names[i]).number();
    if (k.*members[i] < 0) f.at(names[i]).fail("must not be negative");
  }
  for (const char* name : {"link_bytes_per_s", "sharp", "join"}) f.at(name).positive();
  return k;
}

double shortened(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", v);
  return std::strtod(text, nullptr);
}

template <class Kernel>
nlohmann::ordered_json kernel_json(const Kernel& k) {
  nlohmann::ordered_json out;
  const auto members = members_of(k);
  for (std::size_t i = 0; i < members.size(); ++i) out[names_of(k)[i]] = shortened(k.*members[i]);
  return out;
}

}  // namespace

std::span<double NormalKernel::* const> members_of(const NormalKernel&) { return kNormalMembers; }
std::span<double LowLatencyKernel::* const> members_of(const LowLatencyKernel&) { return kLowMembers; }

double normal_seconds(const NormalKernel& k, const KernelLoad& l) {
  const double channels = std::max(1.0, l.sms / 2), n = l.tokens * l.copies, b = l.payload;
  const double walk = (l.tokens * (k.token + k.token_byte * b) + n * (k.copy + k.copy_byte * b)) / channels;
  const double other = n * (k.other + k.other_byte * b) / channels;
  const double start = k.latency + (k.latency_byte + k.latency_copy_byte * l.copies) * b;
  return norm(k.join, {start, norm(k.sharp, {walk, other, n * b / k.link})});
}

double low_latency_sms(int experts, double sms) {
  const double e = std::max(1, experts);
  return std::ceil(e / std::ceil(e / std::max(1.0, sms)));
}

double low_latency_seconds(const LowLatencyKernel& k, const KernelLoad& l) {
  const double at_work = low_latency_sms(l.experts, l.sms), copies = l.tokens * l.top_k, b = l.payload;
  const double tokens = l.tokens * (k.token + k.token_byte * b) / at_work;
  const double moved = copies * (k.copy + k.copy_byte * b) / at_work;
  const double wire = copies * b * (l.ranks - 1) / l.ranks / k.link;
  const double start =
      k.latency + k.latency_byte * b + k.expert * l.experts / l.ranks + l.top_k * (k.choice + k.choice_byte * b);
  return norm(k.join, {start, norm(k.sharp, {tokens, moved, wire})});
}

double deepep_payload(int hidden, double bytes_per_value, bool low_latency_dispatch) {
  return hidden * bytes_per_value + (low_latency_dispatch ? 16 : 0);
}

DeepEpTable read_deepep_table(std::string_view json, const std::string& name) {
  const Field f = Field::parse(json, name);
  f.allow_only({"gpu", "source", "serves", "sms", "link_bytes_per_s", "normal_spread", "low_latency_spread", "dispatch",
                "combine", "low_latency_dispatch", "low_latency_combine"});
  DeepEpTable t;
  t.gpu = f.at("gpu").text();
  t.source = f.at("source").text();
  const Field serves = f.at("serves");
  for (std::size_t i = 0; i < serves.size(); ++i) t.serves.push_back(serves.item(i).text());
  t.sms = f.at("sms").positive();
  t.link_bytes_per_second = f.at("link_bytes_per_s").positive();
  t.normal_spread = f.at("normal_spread").positive();
  t.low_latency_spread = f.at("low_latency_spread").positive();
  t.dispatch = read_kernel<NormalKernel>(f.at("dispatch"));
  t.combine = read_kernel<NormalKernel>(f.at("combine"));
  t.low_dispatch = read_kernel<LowLatencyKernel>(f.at("low_latency_dispatch"));
  t.low_combine = read_kernel<LowLatencyKernel>(f.at("low_latency_combine"));
  return t;
}

std::string json_of(const DeepEpTable& t) {
  nlohmann::ordered_json out = {{"gpu", t.gpu},
                                {"source", t.source},
                                {"serves", t.serves},
                                {"sms", t.sms},
                                {"link_bytes_per_s", t.link_bytes_per_second},
                                {"normal_spread", shortened(t.normal_spread)},
                                {"low_latency_spread", shortened(t.low_latency_spread)}};
  out["dispatch"] = kernel_json(t.dispatch);
  out["combine"] = kernel_json(t.combine);
  out["low_latency_dispatch"] = kernel_json(t.low_dispatch);
  out["low_latency_combine"] = kernel_json(t.low_combine);
  return out.dump(1) + "\n";
}

const std::vector<DeepEpTable>& deepep_tables() {
  static const std::vector<DeepEpTable> tables = [] {
    std::vector<DeepEpTable> out;
    for (const EmbeddedFile& file : hardware_data()) {
      if (file.name.rfind(kFolder, 0) != 0 || file.name.find("published") != std::string_view::npos) continue;
      out.push_back(read_deepep_table(file.text, "hardware/" + std::string(file.name)));
    }
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.gpu < b.gpu; });
    return out;
  }();
  return tables;
}

}  // namespace shardplan
