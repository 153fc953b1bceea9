#pragma once
// A config.json that remembers which of its members were read, so that the rest can be judged: ignorable, not modelled,
// misspelt or unknown. Used by the families' readers only.
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/field.hpp"

namespace shardplan {

class HuggingFaceConfig {
 public:
  /// `outer` is the whole file where `config` is its text_config: tie_word_embeddings and the data type may stand
  /// there.
  HuggingFaceConfig(Field config, std::optional<Field> outer);

  using Names = std::initializer_list<const char*>;

  /// The member under one of its names, or nothing where it is absent or null. Where it stands under two names, they
  /// must agree.
  std::optional<Field> find(Names names) const;
  /// Throws the InputError of that member, or of the whole object where none is stated.
  [[noreturn]] void fail_at(Names names, const std::string& what) const;
  /// A family asked for it.
  bool was_read(const char* name) const { return read_.count(name) > 0; }
  /// Present with any value, null included.
  bool stated(const char* name) const;

  std::int64_t count(Names names, std::int64_t least, std::int64_t most) const;
  std::int64_t count_or(Names names, std::int64_t fallback, std::int64_t most) const;
  bool flag_or(Names names, bool fallback) const;
  double positive_or(Names names, double fallback) const;
  std::string text_or(Names names, const std::string& fallback) const;

  /// layer_types: true where a layer slides, one entry a layer; empty where the file does not say.
  std::vector<bool> sliding_layers(std::int64_t layers) const;

  const Field& field() const { return config_; }
  /// Refuses what was not read and cannot be ignored. Called once the family has read its members.
  void finish() const;

 private:
  Field config_;
  std::optional<Field> outer_;
  mutable std::set<std::string> read_;
};

/// Judges the members of one object that are not in `read`: see finish().
void judge_members(const Field& object, const std::set<std::string>& read);

}  // namespace shardplan
