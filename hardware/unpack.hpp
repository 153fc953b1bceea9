#pragma once
// gzip, as profilers write their traces ("trace.json.gz").
#include <string>
#include <string_view>

namespace shardplan {

/// Whether the bytes begin as a gzip member does (RFC 1952: 1f 8b).
bool is_gzip(std::string_view bytes);
/// The content of all members, one after the other. InputError: damaged, cut off, longer than `most` bytes, or this
/// program was built without zlib.
std::string gunzip(std::string_view bytes, const std::string& name, std::size_t most);

}  // namespace shardplan
