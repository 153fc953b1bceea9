#pragma once
// Reports of Nsight Systems as SQLite files (`nsys export --type sqlite`), read as traces: kernels, copies and fills of
// one GPU with their streams; NVTX push/pop ranges are the annotations.
//
// Tables and columns as docs.nvidia.com's "SQLite Export Schema Reference" names them: StringIds(id, value),
// CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, streamId, correlationId, demangledName), ..._MEMCPY, ..._MEMSET,
// ..._RUNTIME(start, correlationId), NVTX_EVENTS(start, end, text, textId, eventType 59 = push/pop). Times in ns.
// Tables are created lazily: all but the kernels may be missing.
#include <string>
#include <string_view>

#include "hardware/import_trace.hpp"

namespace shardplan {

/// Whether the bytes begin as an SQLite file does.
bool is_sqlite(std::string_view bytes);
/// The GPU of the lowest id where there are several; the device's name then says so. InputError: no such report, or
/// this program was built without SQLite.
ProfilerTrace read_nsys(const std::string& path);

}  // namespace shardplan
