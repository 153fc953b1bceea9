#include "hardware/calibrate_deepep.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/csv.hpp"
#include "base/errors.hpp"
#include "hardware/cluster.hpp"
#include "hardware/compass_search.hpp"
#include "hardware/deepep.hpp"

namespace shardplan {

namespace {

constexpr double kQuadratic = 0.1;  // log errors below count squared, above linearly: sweeps hold a few wild rows
constexpr double kHold = 2e-5;
constexpr double kScaledFp8 = 1 + 4.0 / 128, kBf16 = 2;

double loss_of(double log_error) {
  const double e = std::abs(log_error);
  return e > kQuadratic ? e : 0.5 * (e * e / kQuadratic + kQuadratic);
}

template <class Kernel>
std::vector<double> logs_of(const Kernel& k) {
  std::vector<double> x;
  for (const auto member : members_of(k)) x.push_back(std::log(std::max(k.*member, 1e-15)));
  return x;
}
template <class Kernel>
Kernel kernel_of(const std::vector<double>& x) {
  Kernel k;
  const auto members = members_of(k);
  for (std::size_t i = 0; i < x.size(); ++i) k.*members[i] = std::exp(x[i]);
  k.sharp = std::clamp(k.sharp, 1.0, 20.0);
  k.join = std::clamp(k.join, 0.5, 10.0);
  return k;
}

struct Sample {
  KernelLoad load;
  double seconds;
};

template <class Kernel>
Kernel fit(const std::vector<Sample>& samples, double (*seconds)(const Kernel&, const KernelLoad&),
           const Kernel& prior) {
  if (samples.empty()) return prior;
  const std::vector<double> start = logs_of(prior);
  const auto loss = [&](const std::vector<double>& x) {
    const Kernel k = kernel_of<Kernel>(x);
    double sum = 0;
    for (const Sample& s : samples) sum += loss_of(std::log(seconds(k, s.load) / s.seconds));
    double held = 0;
    for (std::size_t i = 0; i < x.size(); ++i) held += (x[i] - start[i]) * (x[i] - start[i]);
    return sum / static_cast<double>(samples.size()) + kHold * held;
  };
  return kernel_of<Kernel>(compass_search(start, loss, 60));
}

std::vector<Sample> samples_of(std::span<const DeepEpRow> rows, bool low_latency, bool combine, double gpu_sms) {
  std::vector<Sample> out;
  for (const DeepEpRow& r : rows) {
    const double seconds = combine ? r.combine_seconds : r.dispatch_seconds;
    if (r.low_latency == low_latency && r.nodes == 1 && seconds > 0)
      out.push_back({load_of(r, combine, gpu_sms), seconds});
  }
  return out;
}

/// Where every fit starts, whatever the GPU: the defaults, with the link's rate and latencies of its size.
DeepEpTable start_for(const DeepEpTable& like) {
  DeepEpTable t = like;
  t.dispatch = t.combine = NormalKernel{};
  t.low_dispatch = t.low_combine = LowLatencyKernel{};
  const double link = 0.75 * like.link_bytes_per_second;
  t.dispatch.link = t.combine.link = link;
  t.low_dispatch.link = t.low_combine.link = 0.6 * like.link_bytes_per_second;
  t.combine.token_byte = 60e-12;
  t.dispatch.token = 200e-9;
  t.dispatch.token_byte = 1e-12;
  t.low_combine.token = t.low_combine.copy = 20e-9;
  t.low_combine.token_byte = t.low_combine.copy_byte = 0.03e-9;
  return t;
}

DeepEpTable fitted(std::span<const DeepEpRow> rows, const DeepEpTable& like) {
  DeepEpTable t = start_for(like);
  t.dispatch = fit(samples_of(rows, false, false, t.sms), normal_seconds, t.dispatch);
  t.combine = fit(samples_of(rows, false, true, t.sms), normal_seconds, t.combine);
  t.low_dispatch = fit(samples_of(rows, true, false, t.sms), low_latency_seconds, t.low_dispatch);
  t.low_combine = fit(samples_of(rows, true, true, t.sms), low_latency_seconds, t.low_combine);
  return t;
}

double predicted(const DeepEpTable& t, const DeepEpRow& r, bool combine) {
  const KernelLoad l = load_of(r, combine, t.sms);
  if (r.low_latency) return low_latency_seconds(combine ? t.low_combine : t.low_dispatch, l);
  return normal_seconds(combine ? t.combine : t.dispatch, l);
}

/// FNV-1a over the numbers of a row's question.
std::uint64_t hash_of(const DeepEpRow& r) {
  std::uint64_t h = 14695981039346656037ull;
  for (const double v : {r.tokens, double(r.hidden), double(r.top_k), double(r.experts), double(r.dispatch_sms),
                         double(r.low_latency)}) {
    h = (h ^ static_cast<std::uint64_t>(v)) * 1099511628211ull;
    h ^= h >> 29;
  }
  return h;
}

double quantile80(std::vector<double> v, double otherwise) {
  if (v.empty()) return otherwise;
  std::sort(v.begin(), v.end());
  return std::max(0.02, v[static_cast<std::size_t>(0.8 * static_cast<double>(v.size() - 1))]);
}

const DeepEpTable* table_of(const std::string& gpu) {
  for (const DeepEpTable& t : deepep_tables()) {
    if (t.gpu == gpu) return &t;
  }
  return nullptr;
}

}  // namespace

bool is_deepep_table(const CsvTable& t) {
  return t.has("num_topk") && t.has("num_experts") && (t.has("dispatch_transmit_us") || t.has("dispatch_avg_t_us"));
}

std::vector<DeepEpRow> read_deepep_rows(const CsvTable& t) {
  std::vector<DeepEpRow> out;
  const bool low = t.has("dispatch_avg_t_us");
  const auto seconds = [&](std::size_t i, const std::string& direction) {
    if (low) return t.number(i, direction + "_avg_t_us") * 1e-6;
    const std::string notify = t.text_or_empty(i, direction + "_notify_us");
    return (t.number(i, direction + "_transmit_us") + (notify.empty() ? 0 : t.number(i, direction + "_notify_us"))) *
           1e-6;
  };
  const auto whole = [&](std::size_t i, const char* column) {
    return static_cast<int>(std::min<std::int64_t>(t.count(i, column), 1 << 24));
  };
  for (std::size_t i = 0; i < t.size(); ++i) {
    DeepEpRow r;
    r.device = t.text(i, "device");
    r.gpu = gpu_of_alias(r.device);
    r.nodes = whole(i, "node_num");
    r.hidden = whole(i, "hidden_size");
    r.tokens = t.number(i, "num_token");
    r.top_k = whole(i, "num_topk");
    r.experts = whole(i, "num_experts");
    r.low_latency = low;
    if (!low) {
      r.dispatch_sms = whole(i, "dispatch_sms");
      r.combine_sms = whole(i, "combine_sms");
    }
    r.dispatch_seconds = seconds(i, "dispatch");
    r.combine_seconds = seconds(i, "combine");
    out.push_back(std::move(r));
  }
  return out;
}

int deepep_ranks(const DeepEpRow& r) { return r.gpu == "gb200" || r.gpu == "gb300" ? 4 : 8; }

KernelLoad load_of(const DeepEpRow& r, bool combine, double gpu_sms) {
  KernelLoad l;
  l.tokens = r.tokens;
  l.top_k = r.top_k;
  l.experts = r.experts;
  l.ranks = deepep_ranks(r);
  l.payload = deepep_payload(r.hidden, combine ? kBf16 : kScaledFp8, r.low_latency && !combine);
  l.copies = expected_groups(l.ranks, r.experts, r.top_k);
  l.sms = r.low_latency ? gpu_sms : combine ? r.combine_sms : r.dispatch_sms;
  return l;
}

DeepEpTable calibrate_deepep(std::span<const DeepEpRow> rows, const DeepEpTable& prior) {
  DeepEpTable t = fitted(rows, prior);
  std::vector<double> normal, low;
  const std::vector<LeftOutDeepEp> left = leave_out_deepep(rows, 4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!(left[i].dispatch > 0)) continue;
    auto& errors = rows[i].low_latency ? low : normal;
    errors.push_back(std::abs(std::log(left[i].dispatch / rows[i].dispatch_seconds)));
    errors.push_back(std::abs(std::log(left[i].combine / rows[i].combine_seconds)));
  }
  t.normal_spread = quantile80(normal, prior.normal_spread);
  t.low_latency_spread = quantile80(low, prior.low_latency_spread);
  return t;
}

std::vector<LeftOutDeepEp> leave_out_deepep(std::span<const DeepEpRow> rows, int folds) {
  std::vector<LeftOutDeepEp> out(rows.size());
  std::map<std::string, std::vector<std::size_t>> by_gpu;
  for (std::size_t i = 0; i < rows.size(); ++i) by_gpu[rows[i].gpu].push_back(i);
  for (const auto& [gpu, members] : by_gpu) {
    const DeepEpTable* like = table_of(gpu);
    if (like == nullptr) continue;
    for (int fold = 0; fold < folds; ++fold) {
      std::vector<DeepEpRow> seen;
      for (const std::size_t i : members) {
        if (static_cast<int>(hash_of(rows[i]) % static_cast<std::uint64_t>(folds)) != fold) seen.push_back(rows[i]);
      }
      const DeepEpTable t = fitted(seen, *like);
      for (const std::size_t i : members) {
        if (static_cast<int>(hash_of(rows[i]) % static_cast<std::uint64_t>(folds)) != fold || rows[i].nodes != 1)
          continue;
        out[i] = {predicted(t, rows[i], false), predicted(t, rows[i], true)};
      }
    }
  }
  return out;
}

}  // namespace shardplan
