#include "hardware/unpack.hpp"

#include "base/errors.hpp"
#if SHARDPLAN_ZLIB
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <vector>
#endif

namespace shardplan {

bool is_gzip(std::string_view bytes) { return bytes.size() > 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b'; }

#if SHARDPLAN_ZLIB
namespace {

struct Inflater {
  z_stream stream{};
  bool ready = false;
  // 16 + 15: a gzip header, the largest window.
  Inflater() { ready = inflateInit2(&stream, 16 + 15) == Z_OK; }
  ~Inflater() {
    if (ready) inflateEnd(&stream);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

}  // namespace

std::string gunzip(std::string_view bytes, const std::string& name, std::size_t most) {
  Inflater inflater;
  if (!inflater.ready) throw InputError(name, "cannot be unpacked: zlib does not start");
  z_stream& s = inflater.stream;
  std::string out;
  std::vector<char> chunk(std::size_t{1} << 18);
  while (!bytes.empty()) {
    const std::size_t given = std::min<std::size_t>(bytes.size(), std::numeric_limits<uInt>::max() / 2);
    s.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib reads it only
    s.avail_in = static_cast<uInt>(given);
    s.next_out = reinterpret_cast<Bytef*>(chunk.data());
    s.avail_out = static_cast<uInt>(chunk.size());
    const int status = inflate(&s, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) throw InputError(name, "is a damaged or incomplete gzip file");
    bytes.remove_prefix(given - s.avail_in);
    const std::size_t produced = chunk.size() - s.avail_out;
    if (out.size() + produced > most)
      throw InputError(name, "is longer than " + std::to_string(most >> 20) + " MiB when unpacked");
    out.append(chunk.data(), produced);
    if (status != Z_STREAM_END) continue;
    if (bytes.empty()) return out;
    if (inflateReset(&s) != Z_OK) break;
  }
  throw InputError(name, "is a damaged or incomplete gzip file");
}
#else
std::string gunzip(std::string_view, const std::string& name, std::size_t) {
  throw InputError(name, "is compressed, and this program was built without zlib: unpack it first (gzip -d)");
}
#endif

}  // namespace shardplan
