#pragma once
// Our own model file, schema shardplan-model/1. An example with every idea:
//   {"schema": "shardplan-model/1", "name": "x", "source": "where the figures come from",
//    "hidden": 4096, "vocab": 32000, "max_positions": 8192, "tied_embeddings": false, "norm": "rms",
//    "attentions": {"full": {"heads": 32, "kv_heads": 8, "head_dim": 128}},
//    "ffns": {"dense": {"width": 14336}, "experts": {"experts": 8, "top_k": 2, "width": 14336}},
//    "layers": [{"repeat": 1, "attention": "full", "ffn": "dense"},
//               {"repeat": 15, "pattern": [{"attention": "full", "ffn": "experts"}, {"attention": "full", "ffn":
//               "dense"}]}],
//    "mtp": {"layers": [{"repeat": 1, "attention": "full", "ffn": "experts"}], "shares_embeddings": false},
//    "checkpoint": {"format": "bf16", "mtp": true}}
// "sources" may name single figures whose source differs; "assumed" says what stands on memory.
#include "models/model.hpp"

namespace shardplan {

class Field;

/// Reads such a file; InputError names the member that is wrong.
Model read_model_file(const Field& file);

inline constexpr const char* kModelSchema = "shardplan-model/1";

}  // namespace shardplan
