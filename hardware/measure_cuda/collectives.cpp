#include <nccl.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "hardware/measure_cuda/check.hpp"
#include "hardware/measure_cuda/parts.hpp"

namespace shardplan::cuda {
namespace {

/// One GPU of the communicator.
struct Member {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  char *in = nullptr, *out = nullptr;
};

/// All visible GPUs, in one process.
class Group {
 public:
  Group(int ranks, std::size_t bytes) : members_(static_cast<std::size_t>(ranks)) {
    std::vector<ncclComm_t> comms(members_.size());
    check(ncclCommInitAll(comms.data(), ranks, nullptr), "ncclCommInitAll");
    for (int r = 0; r < ranks; ++r) {
      Member& m = members_[static_cast<std::size_t>(r)];
      m.comm = comms[static_cast<std::size_t>(r)];
      check(cudaSetDevice(r), "cudaSetDevice");
      check(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking), "cudaStreamCreate");
      for (cudaEvent_t* event : {&m.begin, &m.end}) check(cudaEventCreate(event), "cudaEventCreate");
      for (char** buffer : {&m.in, &m.out}) {
        void* raw = nullptr;
        check(cudaMalloc(&raw, bytes), "cudaMalloc");
        check(cudaMemset(raw, 0x3c, bytes), "cudaMemset");  // BF16 0.0115: neither zero nor special
        *buffer = static_cast<char*>(raw);
      }
    }
  }
  ~Group() {
    for (std::size_t r = 0; r < members_.size(); ++r) {
      Member& m = members_[r];
      cudaSetDevice(static_cast<int>(r));
      // A communicator whose calls went wrong would wait for ever for its peers.
      failed_ ? ncclCommAbort(m.comm) : ncclCommDestroy(m.comm);
      cudaEventDestroy(m.begin);
      cudaEventDestroy(m.end);
      cudaStreamDestroy(m.stream);
      cudaFree(m.in);
      cudaFree(m.out);
    }
    cudaSetDevice(0);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int ranks() const { return static_cast<int>(members_.size()); }
  Member& member(int r) { return members_[static_cast<std::size_t>(r)]; }

  /// Seconds of one call, the slowest rank's, averaged over `calls` in a row.
  double timed(const std::function<void(int rank, Member&)>& call, int calls) {
    for_each([&](Member& m) { check(cudaEventRecord(m.begin, m.stream), "cudaEventRecord"); });
    for (int i = 0; i < calls; ++i) together(call);
    for_each([&](Member& m) { check(cudaEventRecord(m.end, m.stream), "cudaEventRecord"); });
    double slowest = 0;
    for_each([&](Member& m) {
      check(cudaEventSynchronize(m.end), "cudaEventSynchronize");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, m.begin, m.end), "cudaEventElapsedTime");
      slowest = std::max(slowest, 1e-3 * milliseconds / calls);
    });
    return slowest;
  }

 private:
  /// One call of every rank. A group that was opened is closed whatever happens.
  void together(const std::function<void(int rank, Member&)>& call) {
    check(ncclGroupStart(), "ncclGroupStart");
    try {
      for (int r = 0; r < ranks(); ++r) call(r, member(r));
    } catch (...) {
      failed_ = true;
      ncclGroupEnd();
      throw;
    }
    const ncclResult_t ended = ncclGroupEnd();
    failed_ = ended != ncclSuccess;
    check(ended, "ncclGroupEnd");
  }
  void for_each(const std::function<void(Member&)>& run) {
    for (int r = 0; r < ranks(); ++r) {
      check(cudaSetDevice(r), "cudaSetDevice");
      run(member(r));
    }
  }
  std::vector<Member> members_;
  bool failed_ = false;
};

using Call = std::function<void(int rank, Member&)>;

/// Bytes as nccl-tests counts them: the whole array of a rank. BF16.
Call call_of(const std::string& op, std::size_t bytes, int ranks) {
  const std::size_t count = bytes / 2, share = count / static_cast<std::size_t>(ranks);
  if (op == "all-reduce")
    return [=](int, Member& m) {
      check(ncclAllReduce(m.in, m.out, count, ncclBfloat16, ncclSum, m.comm, m.stream), "ncclAllReduce");
    };
  if (op == "all-gather")
    return [=](int, Member& m) {
      check(ncclAllGather(m.in, m.out, share, ncclBfloat16, m.comm, m.stream), "ncclAllGather");
    };
  if (op == "reduce-scatter")
    return [=](int, Member& m) {
      check(ncclReduceScatter(m.in, m.out, share, ncclBfloat16, ncclSum, m.comm, m.stream), "ncclReduceScatter");
    };
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  if (op == "all-to-all-api")
    return [=](int, Member& m) {
      check(ncclAlltoAll(m.in, m.out, share, ncclBfloat16, m.comm, m.stream), "ncclAlltoAll");
    };
#endif
  if (op == "send-recv")
    return [=](int r, Member& m) {
      check(ncclSend(m.in, count, ncclBfloat16, (r + 1) % ranks, m.comm, m.stream), "ncclSend");
      check(ncclRecv(m.out, count, ncclBfloat16, (r + ranks - 1) % ranks, m.comm, m.stream), "ncclRecv");
    };
  return [=](int, Member& m) {
    for (int peer = 0; peer < ranks; ++peer) {
      check(ncclSend(m.in + static_cast<std::size_t>(peer) * share * 2, share, ncclBfloat16, peer, m.comm, m.stream),
            "ncclSend");
      check(ncclRecv(m.out + static_cast<std::size_t>(peer) * share * 2, share, ncclBfloat16, peer, m.comm, m.stream),
            "ncclRecv");
    }
  };
}

/// Every pair its own count: traffic[s][d] bytes.
Call traffic_call(const std::vector<std::vector<double>>& traffic, int ranks) {
  return [=](int r, Member& m) {
    std::size_t sent = 0, received = 0;
    for (int peer = 0; peer < ranks; ++peer) {
      const auto out =
          static_cast<std::size_t>(traffic[static_cast<std::size_t>(r)][static_cast<std::size_t>(peer)]) / 2;
      const auto in =
          static_cast<std::size_t>(traffic[static_cast<std::size_t>(peer)][static_cast<std::size_t>(r)]) / 2;
      check(ncclSend(m.in + 2 * sent, out, ncclBfloat16, peer, m.comm, m.stream), "ncclSend");
      check(ncclRecv(m.out + 2 * received, in, ncclBfloat16, peer, m.comm, m.stream), "ncclRecv");
      sent += out;
      received += in;
    }
  };
}

Point timed_point(Group& group, const std::string& op, double bytes, const Call& call, int samples) {
  Point point;
  point.kernel = op;
  point.state = "hot";
  point.bytes = bytes;
  point.words = {{"dtype", "bf16"}, {"library", "nccl"}, {"rank_time", "the slowest"}};
  point.numbers = {{"bytes", bytes}, {"ranks", static_cast<double>(group.ranks())}};
  group.timed(call, 2);  // connections are made at the first call of a pair
  const double once = group.timed(call, 1);
  const int calls = static_cast<int>(std::clamp(1e-3 / std::max(once, 1e-6), 1.0, 50.0));
  for (int i = 0; i < samples; ++i) point.samples.push_back(group.timed(call, calls));
  return point;
}

/// Where none is given: popularity of rank d falls as 1 / (d + 1), 4 MiB sent by each rank.
std::vector<std::vector<double>> default_traffic(int ranks) {
  double total = 0;
  for (int d = 0; d < ranks; ++d) total += 1.0 / (d + 1);
  std::vector<double> row;
  for (int d = 0; d < ranks; ++d) row.push_back(std::max(2.0, (4 << 20) / (d + 1.0) / total));
  return std::vector<std::vector<double>>(static_cast<std::size_t>(ranks), row);
}

bool fits(const std::vector<std::vector<double>>& traffic, int ranks, double most) {
  if (static_cast<int>(traffic.size()) != ranks) return false;
  std::vector<double> received(traffic.size(), 0.0);
  for (const auto& row : traffic) {
    if (row.size() != traffic.size()) return false;
    double sent = 0;
    for (std::size_t d = 0; d < row.size(); ++d) {
      sent += row[d];
      received[d] += row[d];
      if (!(row[d] >= 0)) return false;
    }
    if (sent > most) return false;
  }
  return *std::max_element(received.begin(), received.end()) <= most;
}

}  // namespace

std::vector<Point> collective_points(bool quick, const std::vector<std::vector<double>>& traffic, Notes& notes) {
  int ranks = 0;
  check(cudaGetDeviceCount(&ranks), "cudaGetDeviceCount");
  std::vector<Point> points;
  const int samples = quick ? 5 : 11;
  if (ranks == 1) {
    notes.push_back(
        "one GPU: NCCL does not let two ranks share a device, so collectives were only started with one rank (no "
        "communication)");
    if (!traffic.empty()) notes.push_back("the traffic matrix was not measured: it needs as many GPUs as it has rows");
    Group group(1, std::size_t{1} << 20);
    Point point = timed_point(group, "all-reduce", 1 << 20, call_of("all-reduce", std::size_t{1} << 20, 1), samples);
    point.flags.push_back("one-rank");
    points.push_back(point);
    return points;
  }
  const std::size_t most = quick ? std::size_t{64} << 20 : std::size_t{1} << 30;
  Group group(ranks, most);
  std::vector<std::string> ops = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv"};
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  ops.push_back("all-to-all-api");
#endif
  for (const std::string& op : ops) {
    for (std::size_t bytes = 1024; bytes <= most; bytes *= quick ? 16 : 4) {
      const std::size_t whole = bytes / (2 * static_cast<std::size_t>(ranks)) * 2 * static_cast<std::size_t>(ranks);
      if (whole > 0)
        points.push_back(timed_point(group, op, static_cast<double>(whole), call_of(op, whole, ranks), samples));
    }
  }
  const bool given = fits(traffic, ranks, static_cast<double>(most));
  if (!traffic.empty() && !given)
    notes.push_back("the traffic matrix does not fit the GPUs: a skewed one was measured instead");
  const auto matrix = given ? traffic : default_traffic(ranks);
  double bytes = 0;
  for (const double b : matrix.front()) bytes += b;
  Point point = timed_point(group, "all-to-allv", bytes, traffic_call(matrix, ranks), samples);
  for (int s = 0; s < ranks; ++s) {
    for (int d = 0; d < ranks; ++d)
      point.numbers["bytes_" + std::to_string(s) + "_" + std::to_string(d)] =
          matrix[static_cast<std::size_t>(s)][static_cast<std::size_t>(d)];
  }
  points.push_back(point);
  return points;
}

}  // namespace shardplan::cuda
