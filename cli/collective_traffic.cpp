#include "cli/collective_traffic.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/number_text.hpp"
#include "base/quantity_text.hpp"
#include "cli/output.hpp"
#include "hardware/collective_datasheet.hpp"
#include "hardware/flows.hpp"

namespace shardplan {
namespace {

/// Ranks in a row, `per_node` on each board.
std::vector<std::int64_t> placement_of(const Cluster& cluster, std::int64_t ranks, int per_node) {
  std::vector<std::int64_t> placement;
  for (std::int64_t r = 0; r < ranks; ++r) placement.push_back(r / per_node * cluster.node.gpus + r % per_node);
  return placement;
}

Price price_of(const Cluster& cluster, const TrafficQuestion& q, const GroupShape& shape, double wire_seconds) {
  if (q.rates == Rates::datasheet || q.fidelity == Fidelity::bound || wire_seconds == 0) {
    return {wire_seconds, wire_seconds, wire_seconds, Basis::datasheet};
  }
  const double seconds_per_byte = datasheet_seconds(cluster, Collective::all_to_all, 1e9, shape) / 1e9;
  const NetworkModel table(cluster, Rates::calibrated, Fidelity::table);
  return table.collective(Collective::all_to_all, wire_seconds / seconds_per_byte, shape).price;
}

}  // namespace

void print_all_to_allv(const Cluster& cluster, const TrafficQuestion& q) {
  if (q.file.empty()) throw InputError("--traffic", "is required: the matrix of an all-to-allv");
  const TrafficMatrix matrix = read_traffic_matrix(q.file);
  if (!q.ranks.empty() && parse_count(q.ranks, "--ranks") != matrix.ranks) {
    throw InputError("--ranks", q.ranks + ", but the matrix has " + std::to_string(matrix.ranks));
  }
  const int per_node = q.ranks_per_node > 0 ? q.ranks_per_node : cluster.node.gpus;
  const auto placement = placement_of(cluster, matrix.ranks, per_node);
  const std::int64_t nodes = (matrix.ranks + per_node - 1) / per_node;
  const Topology topology = Topology::of(cluster, nodes * cluster.node.gpus);
  const bool bound = q.fidelity == Fidelity::bound;
  const TrafficTime time = bound ? bound_time(topology, matrix, placement) : flows_time(topology, matrix, placement);
  const Price price = price_of(cluster, q, shape_of_ranks(cluster, placement), time.seconds);
  double total = 0, most = 0;
  for (std::int64_t i = 0; i < matrix.ranks; ++i) {
    double sent = 0;
    for (std::int64_t j = 0; j < matrix.ranks; ++j) sent += matrix.at(i, j);
    total += sent;
    most = std::max(most, sent);
  }
  const double mean = total / static_cast<double>(matrix.ranks);
  const double algbw = price.seconds > 0 ? mean / price.seconds : 0;
  const double busbw = algbw * static_cast<double>(matrix.ranks - 1) / static_cast<double>(matrix.ranks);
  const std::string busiest = time.busiest >= 0 ? topology.link_name(time.busiest) : "";
  const char* fidelity = bound ? "bound" : "flows";
  if (q.format == "json") {
    return print_json({{"op", "all-to-allv"},
                       {"cluster", cluster.name},
                       {"ranks", matrix.ranks},
                       {"ranks_per_node", per_node},
                       {"bytes", std::llround(total)},
                       {"bytes_per_rank", mean},
                       {"largest_sender_bytes", std::llround(most)},
                       {"time_s", price.seconds},
                       {"low_s", price.low},
                       {"high_s", price.high},
                       {"algbw", algbw},
                       {"busbw", busbw},
                       {"algorithm", "pairwise"},
                       {"protocol", "simple"},
                       {"fidelity", fidelity},
                       {"rates", q.rates == Rates::datasheet ? "datasheet" : "calibrated"},
                       {"basis", basis_name(price.basis)},
                       {"wire_s", time.seconds},
                       {"bound_s", time.bound_seconds},
                       {"busiest_link", busiest},
                       {"flows", time.flows}});
  }
  std::printf("all-to-allv among %lld ranks of %s, %d on a node; what a rank keeps is not sent\n",
              static_cast<long long>(matrix.ranks), cluster.name.c_str(), per_node);
  std::printf("sent       %s in all, %s by a rank on average, %s by the largest sender\n",
              text_of_decimal_bytes(total).c_str(), text_of_decimal_bytes(mean).c_str(),
              text_of_decimal_bytes(most).c_str());
  std::printf("time       %s  (%s .. %s)\n", text_of_seconds(price.seconds).c_str(), text_of_seconds(price.low).c_str(),
              text_of_seconds(price.high).c_str());
  std::printf("wires      %s at line rate by %s; no less than %s on the busiest link%s%s\n",
              text_of_seconds(time.seconds).c_str(), fidelity, text_of_seconds(time.bound_seconds).c_str(),
              busiest.empty() ? "" : ", ", busiest.c_str());
  std::printf("algbw      %s\nbusbw      %s\nbasis      %s\n", text_of_bytes_per_second(algbw).c_str(),
              text_of_bytes_per_second(busbw).c_str(), std::string(basis_name(price.basis)).c_str());
}

}  // namespace shardplan
