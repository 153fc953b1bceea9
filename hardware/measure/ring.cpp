#include "hardware/measure/ring.hpp"

#include "hardware/measure/block_kernels.hpp"

namespace shardplan {
namespace {

struct Part {
  std::int64_t begin, length;
};

/// The i-th of n nearly equal parts of `floats`.
Part part_of(std::int64_t floats, int n, int i) {
  const std::int64_t begin = floats * i / n;
  return {begin, floats * (i + 1) / n - begin};
}

int wrapped(int i, int n) { return ((i % n) + n) % n; }

/// The part that `member` sends in step s: in the first n - 1 steps partial sums, then finished parts.
int sent_part(int n, int member, int s) {
  return s < n - 1 ? wrapped(member - s, n) : wrapped(member + 1 - (s - (n - 1)), n);
}

}  // namespace

std::vector<std::int64_t> ring_channel_floats(int members, int member, std::int64_t floats) {
  std::vector<std::int64_t> lengths;
  for (int s = 0; s < 2 * (members - 1); ++s)
    lengths.push_back(part_of(floats, members, sent_part(members, member, s)).length);
  return lengths;
}

std::vector<int> add_ring_channels(std::vector<ChannelEnds>& channels, std::span<const int> ranks,
                                   std::int64_t floats) {
  const int n = static_cast<int>(ranks.size());
  std::vector<int> first;
  for (int member = 0; member < n; ++member) {
    first.push_back(static_cast<int>(channels.size()));
    const int to = ranks[static_cast<std::size_t>(wrapped(member + 1, n))];
    for (const std::int64_t length : ring_channel_floats(n, member, floats))
      channels.push_back({ranks[static_cast<std::size_t>(member)], to, length});
  }
  return first;
}

void ring_all_reduce(RankTransport& transport, int rank, int member, std::span<const int> first_channel,
                     std::span<float> data, RankClock& clock) {
  const int n = static_cast<int>(first_channel.size());
  const auto floats = static_cast<std::int64_t>(data.size());
  const int left = wrapped(member - 1, n);
  for (int s = 0; s < 2 * (n - 1); ++s) {
    const Part out = part_of(floats, n, sent_part(n, member, s));
    const int own_channel = first_channel[static_cast<std::size_t>(member)] + s;
    clock.begin();
    transport.copy_in(own_channel, data.data() + out.begin);
    clock.end();
    transport.ring(own_channel, clock.virtual_now());

    const Part in = part_of(floats, n, sent_part(n, left, s));
    const int left_channel = first_channel[static_cast<std::size_t>(left)] + s;
    const double sent_at = transport.wait(rank, left_channel);
    clock.begin(sent_at);
    if (s < n - 1)
      add(in.length, transport.peek(left_channel), data.data() + in.begin);
    else
      transport.copy_out(left_channel, data.data() + in.begin);
    clock.end();
  }
}

}  // namespace shardplan
