#pragma once
// The user's mistakes. Thrown anywhere below cli, caught once in main, printed as "error: <where>: <what>".
#include <stdexcept>
#include <string>
#include <utility>

namespace shardplan {

/// Bad input: `where` is a file plus JSON path ("models/x.json: /moe/experts") or an option's name; exit code 2.
class InputError : public std::runtime_error {
 public:
  InputError(std::string where, const std::string& what) : std::runtime_error(what), where_(std::move(where)) {}
  const std::string& where() const { return where_; }

 private:
  std::string where_;
};

/// A backend or device that was asked for is not there; exit code 3.
class UnavailableError : public InputError {
 public:
  using InputError::InputError;
};

}  // namespace shardplan
