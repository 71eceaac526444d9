// SPDX-License-Identifier: Apache-2.0
// Plain records to bytes and back, with one list of fields for both directions.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "core/check.h"

namespace lockstep::harness {

// Note [One list of fields]
// A record takes part by a function template that names its members once and is found by argument
// dependent lookup; it serves the writer (on a const record) and the reader:
//
//   template <class Archive, class Self>
//   void archive_fields(Archive& archive, Self& self, const Record*) {
//     auto& [first, second] = self;  // a member that is missing here does not compile
//     archive(first, second);
//   }
//
// Numbers are kept in the machine's own representation: both ends are the same build.

/// Appends records to a byte vector. Objects behind shared pointers are written once per writer.
class ArchiveWriter {
 public:
  template <class... Values>
  void operator()(const Values&... values) {
    (put(values), ...);
  }
  std::vector<std::uint8_t> take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t num_bytes) {
    const auto* first = static_cast<const std::uint8_t*>(data);
    bytes_.insert(bytes_.end(), first, first + num_bytes);
  }
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      append(&value, sizeof(value));
    } else {
      archive_fields(*this, value, &value);
    }
  }
  void put(const std::string& value) {
    put(std::uint64_t{value.size()});
    append(value.data(), value.size());
  }
  void put(const std::vector<std::uint8_t>& value) {
    put(std::uint64_t{value.size()});
    append(value.data(), value.size());
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(std::uint64_t{values.size()});
    for (const T& value : values) {
      put(value);
    }
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(static_cast<std::uint8_t>(value.has_value()));
    if (value) {
      put(*value);
    }
  }
  template <class T>
  void put(const std::shared_ptr<const T>& value) {
    if (!value) {
      put(std::uint64_t{0});
      return;
    }
    const auto [entry, is_new] = shared_.emplace(value.get(), shared_.size() + 1);
    put(std::uint64_t{entry->second});
    if (is_new) {
      put(*value);
    }
  }

  std::vector<std::uint8_t> bytes_;
  std::map<const void*, std::uint64_t> shared_;  ///< number of each object, from 1
};

/// Reads what an ArchiveWriter wrote, in the same order and with the same types.
/// Errors: UsageError for bytes that end too early or hold impossible values.
class ArchiveReader {
 public:
  /// `bytes` outlives the reader.
  explicit ArchiveReader(const std::vector<std::uint8_t>& bytes) : bytes_(bytes) {}

  template <class... Values>
  void operator()(Values&... values) {
    (get(values), ...);
  }
  /// Errors: UsageError if bytes are left.
  void finish() const {
    LOCKSTEP_USAGE(at_ == bytes_.size(), "{} bytes too many", bytes_.size() - at_);
  }

 private:
  void copy(void* data, std::size_t num_bytes) {
    LOCKSTEP_USAGE(num_bytes <= bytes_.size() - at_, "bytes end at {}, {} more were expected",
                   bytes_.size(), num_bytes);
    if (num_bytes > 0) {
      std::memcpy(data, bytes_.data() + at_, num_bytes);
    }
    at_ += num_bytes;
  }
  template <class T>
  T number() {
    T value{};
    copy(&value, sizeof(value));
    return value;
  }
  /// A length of a list whose entries take at least one byte each.
  std::size_t length() {
    const auto count = number<std::uint64_t>();
    LOCKSTEP_USAGE(count <= bytes_.size() - at_, "a list of {} entries in {} bytes", count,
                   bytes_.size() - at_);
    return count;
  }
  template <class T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = number<std::uint8_t>();
      LOCKSTEP_USAGE(byte <= 1, "{} is no truth value", byte);
      value = byte == 1;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      copy(&value, sizeof(value));
    } else {
      archive_fields(*this, value, &value);
    }
  }
  void get(std::string& value) {
    value.resize(length());
    copy(value.data(), value.size());
  }
  void get(std::vector<std::uint8_t>& value) {
    value.resize(length());
    copy(value.data(), value.size());
  }
  template <class T>
  void get(std::vector<T>& values) {
    values.clear();
    for (std::size_t left = length(); left > 0; --left) {
      get(values.emplace_back());
    }
  }
  template <class T>
  void get(std::optional<T>& value) {
    bool has_value = false;
    get(has_value);
    value.reset();
    if (has_value) {
      get(value.emplace());
    }
  }
  template <class T>
  void get(std::shared_ptr<const T>& value) {
    const auto number_of_object = number<std::uint64_t>();
    if (number_of_object == 0) {
      value.reset();
    } else if (number_of_object <= shared_.size()) {
      const Shared& known = shared_[number_of_object - 1];
      LOCKSTEP_USAGE(known.type == typeid(T), "object {} is of another type", number_of_object);
      value = std::static_pointer_cast<const T>(known.object);
    } else {
      LOCKSTEP_USAGE(number_of_object == shared_.size() + 1, "object {} comes too early",
                     number_of_object);
      auto object = std::make_shared<T>();
      value = object;
      shared_.push_back({typeid(T), object});
      get(*object);
    }
  }

  struct Shared {
    std::type_index type;
    std::shared_ptr<const void> object;
  };
  const std::vector<std::uint8_t>& bytes_;
  std::size_t at_ = 0;
  std::vector<Shared> shared_;
};

/// One record as bytes.
template <class Record>
std::vector<std::uint8_t> archive_bytes(const Record& record) {
  ArchiveWriter writer;
  writer(record);
  return writer.take();
}

/// The record that `archive_bytes` wrote. Errors: UsageError as for ArchiveReader.
template <class Record>
Record from_archive(const std::vector<std::uint8_t>& bytes) {
  Record record;
  ArchiveReader reader(bytes);
  reader(record);
  reader.finish();
  return record;
}

}  // namespace lockstep::harness
