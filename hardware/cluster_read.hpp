#pragma once
// Reads GPU and cluster files. Private to hardware/cluster*.cpp.
#include <string>
#include <vector>

#include "hardware/cluster.hpp"

namespace shardplan {

class Field;

/// A GPU file or the `gpu` member of a cluster file.
Gpu read_gpu(const Field& file);
/// A GPU file's reference node and network as a cluster of the GPU's name.
Cluster read_reference(const Field& file);
/// A cluster file; `named` finds the GPU where `gpu` is a text.
Cluster read_cluster_file(const Field& file, Gpu (*named)(const Field& text));
std::vector<std::string> read_aliases(const Field& file);

}  // namespace shardplan
