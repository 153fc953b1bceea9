#include "base/field.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "base/errors.hpp"
#include "base/quantity_text.hpp"
#include "base/suggest.hpp"

namespace shardplan {

using nlohmann::json;

namespace {

std::string clipped(std::string_view text, std::size_t longest = 60) {
  return text.size() <= longest ? std::string(text) : std::string(text.substr(0, longest)) + "...";
}

std::string escaped_key(const std::string& key) {
  std::string out;
  for (const char c : clipped(key)) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

/// Builds the document and refuses what nlohmann's own parser accepts: duplicate keys, deep nesting, numbers beyond
/// double.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(std::string name) : name_(std::move(name)) {}

  json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t& text) override {
    if (!std::isfinite(v)) throw InputError(place(), "number out of range: " + clipped(text));
    return put(v);
  }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    if (!seen_.back().insert(k).second)
      throw InputError(name_ + ": " + path() + "/" + escaped_key(k), "the member stands twice");
    keys_.back() = k;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) override {
    std::string what = error.what();
    if (error.id == 406) throw InputError(name_, "number out of range near byte " + std::to_string(position));
    if (const auto at = what.find("syntax error"); at != std::string::npos) what = what.substr(at);
    throw InputError(name_, "not JSON: " + clipped(what, 160) + " (byte " + std::to_string(position) + ")");
  }

 private:
  std::string path() const {
    std::string path;
    for (std::size_t i = 0; i + 1 < stack_.size(); ++i) path += "/" + step(i);
    return path;
  }
  std::string place() const { return name_ + ": " + (path().empty() ? "/" : path()); }
  std::string step(std::size_t i) const {
    return stack_[i]->is_array() ? std::to_string(stack_[i]->size() - 1) : escaped_key(keys_[i]);
  }
  json* add(json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[keys_.back()] = std::move(value));
  }
  bool put(json value) {
    add(std::move(value));
    return true;
  }
  bool open(json value) {
    if (static_cast<int>(stack_.size()) >= kDeepestJson)
      throw InputError(name_, "nested deeper than " + std::to_string(kDeepestJson) + " levels");
    stack_.push_back(add(std::move(value)));
    keys_.emplace_back();
    seen_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    seen_.pop_back();
    return true;
  }

  std::string name_;
  json root_;
  std::vector<json*> stack_;
  std::vector<std::string> keys_;
  std::vector<std::set<std::string>> seen_;
};

}  // namespace

Field::Field(std::shared_ptr<const nlohmann::json> document, const nlohmann::json* value, std::string name,
             std::string path)
    : document_(std::move(document)), value_(value), name_(std::move(name)), path_(std::move(path)) {}

Field Field::parse(std::string_view text, const std::string& name) {
  if (text.size() > kLargestJsonBytes) throw InputError(name, "larger than 64 MiB");
  Builder builder(name);
  nlohmann::json::sax_parse(text, &builder);
  auto document = std::make_shared<const nlohmann::json>(builder.take());
  const nlohmann::json* root = document.get();
  return Field(std::move(document), root, name, "");
}

Field Field::read(const std::string& path) { return parse(read_text_file(path), path); }

std::string Field::where() const { return name_ + ": " + (path_.empty() ? "/" : path_); }
bool Field::is_null() const { return value_->is_null(); }
bool Field::is_object() const { return value_->is_object(); }
bool Field::is_array() const { return value_->is_array(); }
bool Field::is_string() const { return value_->is_string(); }
bool Field::is_number() const { return value_->is_number(); }

bool Field::has(const std::string& key) const { return value_->is_object() && value_->contains(key); }

Field Field::at(const std::string& key) const {
  if (!value_->is_object()) fail("expected an object, got " + shown());
  const auto found = value_->find(key);
  if (found == value_->end()) fail("missing member \"" + key + "\"");
  return Field(document_, &*found, name_, path_ + "/" + escaped_key(key));
}

std::optional<Field> Field::find(const std::string& key) const {
  if (!value_->is_object()) fail("expected an object, got " + shown());
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return Field(document_, &*found, name_, path_ + "/" + escaped_key(key));
}

std::size_t Field::size() const {
  if (!value_->is_array() && !value_->is_object()) fail("expected a list, got " + shown());
  return value_->size();
}

Field Field::item(std::size_t i) const {
  if (!value_->is_array()) fail("expected a list, got " + shown());
  if (i >= value_->size()) fail("has only " + std::to_string(value_->size()) + " items");
  return Field(document_, &(*value_)[i], name_, path_ + "/" + std::to_string(i));
}

std::vector<std::string> Field::keys() const {
  if (!value_->is_object()) fail("expected an object, got " + shown());
  std::vector<std::string> out;
  for (const auto& member : value_->items()) out.push_back(member.key());
  return out;
}

std::int64_t Field::count(std::int64_t least, std::int64_t most) const {
  double value = 0;
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    fail("out of range: " + shown() + " is above " + std::to_string(most));
  if (value_->is_number_integer()) {
    const auto n = value_->get<std::int64_t>();
    if (n < least) fail("out of range: " + shown() + " is below " + std::to_string(least));
    if (n > most) fail("out of range: " + shown() + " is above " + std::to_string(most));
    return n;
  }
  if (!value_->is_number_float()) fail("expected a whole number, got " + shown());
  value = value_->get<double>();
  if (value != std::floor(value)) fail("expected a whole number, got " + shown());
  if (value < static_cast<double>(least)) fail("out of range: " + shown() + " is below " + std::to_string(least));
  if (value > static_cast<double>(most)) fail("out of range: " + shown() + " is above " + std::to_string(most));
  return static_cast<std::int64_t>(value);
}

double Field::number() const {
  if (!value_->is_number()) fail("expected a number, got " + shown());
  return value_->get<double>();
}

double Field::positive() const {
  const double value = number();
  if (!(value > 0)) fail("expected a number above zero, got " + shown());
  return value;
}

bool Field::boolean() const {
  if (!value_->is_boolean()) fail("expected true or false, got " + shown());
  return value_->get<bool>();
}

std::string Field::text() const {
  if (!value_->is_string()) fail("expected a text, got " + shown());
  return value_->get<std::string>();
}

std::vector<double> Field::numbers() const {
  std::vector<double> out;
  const std::size_t n = size();
  out.reserve(n);
  for (std::size_t i = 0; i < n; ++i) out.push_back(item(i).number());
  return out;
}

double Field::quantity(double (*parse)(std::string_view, const std::string&), const char* expected) const {
  if (value_->is_string()) return parse(value_->get_ref<const std::string&>(), where());
  if (!value_->is_number()) fail(std::string("expected ") + expected + ", got " + shown());
  const double value = number();
  if (value < 0) fail("must not be negative: " + shown());
  return value;
}

double Field::bytes() const { return quantity(parse_bytes, "bytes"); }
double Field::seconds() const { return quantity(parse_seconds, "a time"); }
double Field::bytes_per_second() const { return quantity(parse_bytes_per_second, "bytes per second"); }
double Field::flops_per_second() const { return quantity(parse_flops_per_second, "FLOP per second"); }

void Field::allow_only(const std::vector<std::string>& known) const {
  for (const std::string& key : keys()) {
    bool found = false;
    for (const std::string& k : known) found = found || k == key;
    if (!found) {
      throw InputError(name_ + ": " + path_ + "/" + escaped_key(key), "unknown member" + did_you_mean(key, known));
    }
  }
}

void Field::fail(const std::string& what) const { throw InputError(where(), what); }

std::string Field::shown() const {
  if (value_->is_object()) return "an object";
  if (value_->is_array()) return "a list";
  return clipped(value_->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string read_text_file(const std::string& path, std::size_t limit) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw InputError(path, "no such file");
  if (std::filesystem::is_directory(status)) throw InputError(path, "is a folder, expected a file");
  if (std::filesystem::is_regular_file(status) && std::filesystem::file_size(path, error) > limit)
    throw InputError(path, "larger than " + std::to_string(limit >> 20) + " MiB");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path, "cannot be read");
  std::string text;
  char buffer[65536];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (text.size() > limit) throw InputError(path, "larger than " + std::to_string(limit >> 20) + " MiB");
  }
  return text;
}

void write_text_file(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".partial";
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.flush();
    if (!out) {
      std::remove(temporary.c_str());
      throw InputError(path, "cannot be written");
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::remove(temporary.c_str());
    throw InputError(path, "cannot be written: " + error.message());
  }
}

}  // namespace shardplan
