// SPDX-License-Identifier: Apache-2.0
// A file for results that is either complete or not touched.
#include "harness/report/result_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <streambuf>

#include "core/check.h"

namespace lockstep::harness {

namespace {

/// Writes to a file descriptor that it does not own.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int fd) : fd_(fd) {
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }

  /// errno of the write that failed.
  int error() const { return error_; }

 protected:
  int_type overflow(int_type c) override {
    if (sync() != 0) return traits_type::eof();
    if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
    return traits_type::not_eof(c);
  }

  int sync() override {
    const char* next = pbase();
    while (next < pptr()) {
      const ssize_t written = write(fd_, next, static_cast<std::size_t>(pptr() - next));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        error_ = errno;
        return -1;
      }
      next += written;
    }
    setp(buffer_.data(), buffer_.data() + buffer_.size());
    return 0;
  }

 private:
  int fd_;
  int error_ = 0;
  std::array<char, 1 << 14> buffer_;
};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// The file that a chain of links ends in, so that a link keeps being one.
std::string without_links(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string out = real;
  std::free(real);
  return out;
}

}  // namespace

struct ResultFile::Impl {
  std::string path;       ///< as given, for messages
  std::string target;     ///< what is replaced; empty if written directly
  std::string temporary;  ///< empty while the file has no name
  int fd = -1;
  bool owned = true;
  std::unique_ptr<DescriptorBuffer> buffer;
  std::unique_ptr<std::ostream> stream;

  [[noreturn]] void refuse(int error = errno) const {
    throw UsageError(fmt::format("cannot write '{}': {}", path, std::strerror(error)));
  }

  std::string temporary_name() const { return fmt::format("{}.{}.partial", target, getpid()); }

  void open_path() {
    struct stat info {};
    const bool exists = stat(path.c_str(), &info) == 0;
    if (!exists && errno != ENOENT) refuse();
    if (exists && !S_ISREG(info.st_mode)) {
      fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      if (fd < 0) refuse();
      return;
    }
    if (exists && access(path.c_str(), W_OK) != 0) refuse();
    target = without_links(path);
    // A file without a name vanishes with the process, whatever ends it. Not every file system has
    // them; there a named one does.
    fd = open(folder_of(target).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0) return;
    const std::string name = temporary_name();
    fd = open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) refuse();
    temporary = name;
  }

  void publish() {
    if (temporary.empty()) {
      const std::string name = temporary_name();
      unlink(name.c_str());
      const std::string source = fmt::format("/proc/self/fd/{}", fd);
      if (linkat(AT_FDCWD, source.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
        refuse();
      }
      temporary = name;
    }
    if (rename(temporary.c_str(), target.c_str()) != 0) refuse();
    temporary.clear();
  }
};

ResultFile::ResultFile(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  if (path == "-") {
    impl_->fd = STDOUT_FILENO;
    impl_->owned = false;
  } else {
    LOCKSTEP_USAGE(!path.empty(), "a result file needs a name");
    impl_->open_path();
  }
  impl_->buffer = std::make_unique<DescriptorBuffer>(impl_->fd);
  impl_->stream = std::make_unique<std::ostream>(impl_->buffer.get());
}

ResultFile::~ResultFile() {
  if (!impl_->temporary.empty()) unlink(impl_->temporary.c_str());
  if (impl_->owned && impl_->fd >= 0) close(impl_->fd);
}

std::ostream& ResultFile::out() { return *impl_->stream; }

void ResultFile::commit() {
  impl_->stream->flush();
  if (!*impl_->stream) impl_->refuse(impl_->buffer->error());
  if (!impl_->target.empty()) impl_->publish();
}

}  // namespace lockstep::harness
