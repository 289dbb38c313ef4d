// Times compute passes by the GPU's own timestamps.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "api.h"

namespace webgpu {

// Of a device that is not necessarily the one of tensors.
struct Connection {
  Handle device = nullptr, queue = nullptr, instance = nullptr;
  bool dawn = false;
};

// The first bytes of a staging buffer that commands submitted before have filled; waits. Throws where mapping fails.
std::string map_bytes(const Connection& to, Handle staging, uint64_t bytes);

// Nanoseconds between the ends of passes, summed. Negative differences, which the specification allows, are dropped and
// counted.
struct PassTimes {
  double gpu = 0;
  uint32_t passes = 0, dropped = 0, untimed = 0;
  uint64_t step = 0;  // what all differences are multiples of
};

constexpr uint32_t most_timed_passes = 2048;  // the specification allows 4096 queries in a set

class PassTimer {
 public:
  // The device must have been made with timestamp queries.
  explicit PassTimer(const Connection& to);
  PassTimer(const PassTimer&) = delete;
  PassTimer& operator=(const PassTimer&) = delete;
  ~PassTimer();
  // Begins a pass that is timed, or is counted as untimed where `most_timed_passes` were begun before.
  Handle begin_pass(Handle encoder);
  // Forgets the passes after the first `count`: their commands will not be submitted.
  void rewind(uint32_t count) { passes = count; }
  // Of the passes since the last call, whose commands must be submitted; waits.
  PassTimes read();
  // The same one by one: beginning and end, by the GPU's clock.
  std::vector<std::pair<int64_t, int64_t>> nanoseconds();

 private:
  // Resolves and reads the ticks of the passes begun so far, two each, and forgets them.
  std::vector<uint64_t> ticks();
  double period() const;  // ns

  Connection device;
  Handle queries = nullptr, resolved = nullptr, staging = nullptr;
  uint32_t passes = 0, untimed = 0;
};

}  // namespace webgpu
