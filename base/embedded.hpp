#pragma once
// Data files compiled into the program (see cmake/embed.cmake): each room with data has `<room>_data()`.
#include <span>
#include <string_view>

namespace shardplan {

struct EmbeddedFile {
  std::string_view name;  // relative to the room's folder: "data/llama-3.1-8b.json"
  std::string_view text;
};

std::span<const EmbeddedFile> models_data();
std::span<const EmbeddedFile> hardware_data();
std::span<const EmbeddedFile> layouts_data();

}  // namespace shardplan
