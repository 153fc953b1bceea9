#include "hardware/deepep.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/embedded.hpp"
#include "base/errors.hpp"
#include "base/field.hpp"
#include "hardware/deepep_kernel.hpp"

namespace shardplan {

namespace {

constexpr std::string_view kPublished = "data/deepep/published.json";
constexpr double kBorrowedSpread = 0.2;  // of log time: constants of another GPU or of the first version's tables

/// DeepEP's own tables in six figures.
struct Published {
  double normal_nvlink = 0, low_latency_nvlink = 0, nic_efficiency = 0, latency = 0, sm_rate = 0;
  double v2_link_efficiency = 0, v2_sm_rate = 0, spread = 0;
};

const Published& published() {
  static const Published p = [] {
    for (const EmbeddedFile& file : hardware_data()) {
      if (file.name != kPublished) continue;
      const Field f = Field::parse(file.text, "hardware/" + std::string(file.name));
      return Published{f.at("normal_nvlink_bytes_per_s").positive(),
                       f.at("low_latency_nvlink_bytes_per_s").positive(),
                       f.at("nic_efficiency").positive(),
                       f.at("latency_s").positive(),
                       f.at("sm_bytes_per_s").positive(),
                       f.at("v2_link_efficiency").positive(),
                       f.at("v2_sm_bytes_per_s").positive(),
                       f.at("spread").positive()};
    }
    throw InputError("hardware/data/deepep", "published.json is missing");
  }();
  return p;
}

const DeepEpTable* table_of(const std::string& gpu) {
  for (const DeepEpTable& t : deepep_tables()) {
    if (t.gpu == gpu || std::find(t.serves.begin(), t.serves.end(), gpu) != t.serves.end()) return &t;
  }
  return nullptr;
}

double domains_of(const ExpertExchange& e) { return std::ceil(static_cast<double>(e.ranks) / e.ranks_per_domain); }
/// Domains that a token may use, of all.
double allowed_domains(const ExpertExchange& e) {
  return e.nodes_per_token > 0 ? std::min<double>(e.nodes_per_token, domains_of(e)) : domains_of(e);
}

void check(const ExpertExchange& e) {
  const auto positive = [](double v, const char* what) {
    if (!(v > 0) || !std::isfinite(v)) throw InputError(what, "must be above 0");
  };
  positive(e.ranks, "ranks of the exchange");
  positive(e.ranks_per_domain, "ranks per domain");
  positive(e.hidden, "hidden size");
  positive(e.experts, "experts");
  positive(e.top_k, "top-k");
  positive(e.dispatch_bytes, "dispatch bytes a value");
  positive(e.combine_bytes, "combine bytes a value");
  positive(e.imbalance, "imbalance");
  if (!(e.tokens >= 0) || !std::isfinite(e.tokens)) throw InputError("tokens", "must be 0 or more");
  if (e.top_k > e.experts) throw InputError("top-k", "is above the number of experts");
  if (e.nodes_per_token < 0) throw InputError("nodes per token", "must not be negative");
  if (e.nodes_per_token > 0 && e.top_k > e.experts * allowed_domains(e) / domains_of(e)) {
    throw InputError("nodes per token", "the allowed nodes hold fewer experts than top-k");
  }
}

/// How often a token travels, on average.
struct Copies {
  double domains = 1;  // distinct domains, own included
  double ranks = 1;    // distinct ranks, own included
};
Copies copies_of(const ExpertExchange& e) {
  const double all = domains_of(e), allowed = allowed_domains(e);
  const double experts = e.experts * allowed / all, ranks = e.ranks * allowed / all;
  return {expected_groups(allowed, experts, e.top_k), expected_groups(ranks, experts, e.top_k)};
}

}  // namespace

double expected_groups(double groups, double experts, int k, double limit) {
  if (groups <= 1 || k <= 0) return k > 0 ? 1 : 0;
  if (limit > 0 && limit < groups) return expected_groups(limit, experts * limit / groups, k);
  // C(E - E/g, k) / C(E, k) as a product; fewer experts than groups: every expert is a group of its own.
  const double in_group = std::max(1.0, experts / groups), there = std::min(groups, experts);
  double missed = 1;
  for (int i = 0; i < k; ++i) missed *= std::max(0.0, experts - in_group - i) / std::max(1.0, experts - i);
  return there * (1 - missed);
}

int default_sms(ExpertTransport transport, const ExpertExchange& e) {
  switch (transport) {
    case ExpertTransport::deepep_v2:
    case ExpertTransport::hybridep:
      return domains_of(e) <= 1 ? 24 : domains_of(e) <= 2 ? 12 : 6;
    case ExpertTransport::nccl:
      return 16;
    default:
      return 24;
  }
}

struct ExpertExchangeModel::Impl {
  Impl(const Cluster& c, Rates r, Fidelity f) : cluster(c), rates(r), network(c, r, f), table(table_of(c.gpu.name)) {}

  ExchangePrice price(ExpertTransport transport, ExpertExchange e, bool combine) const {
    e.ranks_per_domain = std::max(1, std::min(e.ranks_per_domain, e.ranks));
    check(e);
    if (e.sms <= 0) e.sms = default_sms(transport, e);
    ExchangePrice out = bytes_of(transport, e, combine);
    if (e.ranks <= 1 || e.tokens == 0) return out;
    if (domains_of(e) > 1 && !(nic_rate(e) > 0))
      throw InputError(cluster.name, "the experts' group crosses nodes, but the cluster has no NICs");
    if (rates == Rates::datasheet) return at_line_rate(out, e);
    if (transport == ExpertTransport::nccl) return by_nccl(out, e, combine);
    const bool low = transport == ExpertTransport::deepep_low_latency;
    const bool second = transport == ExpertTransport::deepep_v2 || transport == ExpertTransport::hybridep;
    if (domains_of(e) <= 1 && table != nullptr && !second) return by_kernel(out, e, combine, low);
    return by_stages(transport, out, e);
  }

  double payload(const ExpertExchange& e, bool combine, bool low_latency = false) const {
    return deepep_payload(e.hidden, combine ? e.combine_bytes : e.dispatch_bytes, low_latency && !combine);
  }
  /// NIC line rate of one rank's share, bytes/s.
  double nic_rate(const ExpertExchange& e) const {
    return e.nics_per_domain * cluster.node.nic_bytes_per_second.value /
           std::max(1.0, cluster.network.oversubscription.value) / e.ranks_per_domain;
  }

  ExchangePrice bytes_of(ExpertTransport transport, const ExpertExchange& e, bool combine) const {
    const bool every = transport == ExpertTransport::nccl || transport == ExpertTransport::deepep_low_latency;
    const double all = domains_of(e), k = e.ranks_per_domain;
    const double one = e.tokens * e.imbalance * payload(e, combine, transport == ExpertTransport::deepep_low_latency);
    const Copies c = copies_of(e);
    ExchangePrice out;
    out.sms_held =
        transport == ExpertTransport::deepep_low_latency ? low_latency_sms(e.experts, cluster.gpu.sms.value) : e.sms;
    if (every) {
      out.logical_bytes = one * e.top_k;
      out.nic_bytes = out.logical_bytes * (e.ranks - k) / e.ranks;
      out.nvlink_bytes = out.logical_bytes * (k - 1) / e.ranks;
    } else {
      out.logical_bytes = one * (all > 1 ? c.domains : c.ranks);
      out.nic_bytes = one * c.domains * (1 - 1 / all);
      // Copies into a GPU from others of its domain; those from outside arrive at the GPU of the same place first.
      out.nvlink_bytes = one * c.ranks * (1 - 1 / k);
    }
    return out;
  }

  ExchangePrice finished(ExchangePrice out, double seconds, double spread, Basis basis) const {
    const double factor = std::exp(spread);
    out.price = {seconds, seconds / factor, seconds * factor, basis};
    return out;
  }

  ExchangePrice at_line_rate(ExchangePrice out, const ExpertExchange& e) const {
    const double nic = domains_of(e) > 1 ? out.nic_bytes / nic_rate(e) : 0;
    const double link = e.ranks_per_domain > 1 ? out.nvlink_bytes / cluster.gpu.nvlink_bytes_per_second.value : 0;
    out.bound = nic >= link ? "nic" : "nvlink";
    out.sms_held = 0;
    return finished(out, std::max(nic, link), 0, Basis::datasheet);
  }

  ExchangePrice by_nccl(ExchangePrice out, const ExpertExchange& e, bool combine) const {
    const GroupShape shape{e.ranks, e.ranks_per_domain, e.nics_per_domain};
    const double bytes = e.tokens * e.imbalance * e.top_k * payload(e, combine);
    out.price = network.collective(Collective::all_to_all, bytes, shape).price;
    out.bound = shape.crosses() ? "nic" : "nvlink";
    return out;
  }

  ExchangePrice by_kernel(ExchangePrice out, const ExpertExchange& e, bool combine, bool low) const {
    KernelLoad l;
    l.tokens = e.tokens * e.imbalance;
    l.payload = payload(e, combine, low);
    l.copies = copies_of(e).ranks;
    l.top_k = e.top_k;
    l.experts = e.experts;
    l.ranks = e.ranks;
    l.sms = low ? table->sms : e.sms;
    const bool own = table->gpu == cluster.gpu.name;
    const double scale = own || !(cluster.gpu.nvlink_bytes_per_second.value > 0)
                             ? 1
                             : cluster.gpu.nvlink_bytes_per_second.value / table->link_bytes_per_second;
    double seconds = 0, on_wire = 0;
    if (low) {
      LowLatencyKernel k = combine ? table->low_combine : table->low_dispatch;
      k.link *= scale;
      seconds = low_latency_seconds(k, l);
      on_wire = out.nvlink_bytes / k.link;
    } else {
      NormalKernel k = combine ? table->combine : table->dispatch;
      k.link *= scale;
      seconds = normal_seconds(k, l);
      on_wire = out.logical_bytes / k.link;
    }
    out.bound = on_wire > 0.7 * seconds ? "nvlink" : l.tokens * l.copies < 64 * l.sms ? "latency" : "sms";
    const double spread = low ? table->low_latency_spread : table->normal_spread;
    return finished(out, seconds, own ? spread : std::hypot(spread, kBorrowedSpread),
                    own ? Basis::interpolated : Basis::transferred);
  }

  ExchangePrice by_stages(ExpertTransport transport, ExchangePrice out, const ExpertExchange& e) const {
    const Published& p = published();
    const bool low = transport == ExpertTransport::deepep_low_latency;
    const bool one_domain = domains_of(e) <= 1;
    // Logical bytes of the NVLink stage, own GPU included, as the published rates count them.
    const double k = e.ranks_per_domain;
    const double staged = low     ? (one_domain ? out.logical_bytes : out.nvlink_bytes)
                          : k > 1 ? out.nvlink_bytes / (1 - 1 / k)
                                  : 0;
    const double link = staged / nvlink_stage_rate(transport, e);
    const double nic = one_domain ? 0 : out.nic_bytes / (p.nic_efficiency * nic_rate(e));
    out.bound = nic >= link ? "nic" : "nvlink";
    const bool tabled = cluster.gpu.name == "h800-sxm" && (low || transport == ExpertTransport::deepep);
    return finished(out, p.latency + std::max(nic, link), tabled ? p.spread : std::hypot(p.spread, kBorrowedSpread),
                    tabled ? Basis::interpolated : Basis::transferred);
  }

  double nvlink_stage_rate(ExpertTransport transport, const ExpertExchange& e) const {
    const Published& p = published();
    if (transport == ExpertTransport::deepep_low_latency) return p.low_latency_nvlink;
    // The first version's hand-over inside a node reached the same on H200 (450 GB/s of NVLink) as on H800 (200): its
    // own limit.
    if (transport == ExpertTransport::deepep) return std::min(p.normal_nvlink, p.sm_rate * e.sms);
    const double link = p.v2_link_efficiency * cluster.gpu.nvlink_bytes_per_second.value, sms = p.v2_sm_rate * e.sms;
    return std::pow(std::pow(link, -4) + std::pow(sms, -4), -0.25);
  }

  Cluster cluster;
  Rates rates;
  NetworkModel network;
  const DeepEpTable* table;
};

ExpertExchangeModel::ExpertExchangeModel(const Cluster& c, Rates r, Fidelity f)
    : impl_(std::make_unique<Impl>(c, r, f)) {}
ExpertExchangeModel::~ExpertExchangeModel() = default;
ExpertExchangeModel::ExpertExchangeModel(ExpertExchangeModel&&) noexcept = default;

ExchangePrice ExpertExchangeModel::dispatch(ExpertTransport t, const ExpertExchange& e) const {
  return impl_->price(t, e, false);
}
ExchangePrice ExpertExchangeModel::combine(ExpertTransport t, const ExpertExchange& e) const {
  return impl_->price(t, e, true);
}

}  // namespace shardplan
