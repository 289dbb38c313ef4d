// What torch.profiler shows of the device: when each launch was recorded, and when the GPU ran it. Such a launch has a pass
// of its own, since WebGPU's timestamps are those of passes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api.h"
#include "pass_timer.h"

namespace webgpu {

struct Pipeline;

// All times are nanoseconds of the system clock.
struct HostSpan {
  const char* name;
  uint64_t correlation;  // of the PyTorch op it belongs to; 0 is none
  int32_t thread;
  int64_t begin, end;
};

struct Launch {
  std::string name;
  uint32_t groups[3];
  HostSpan host;
  int64_t begin = 0, end = 0;  // on the GPU; both 0 where it was not timed
};

struct Timeline {
  std::vector<Launch> launches;
  std::vector<HostSpan> waits;
  bool timed = false;  // whether the adapter has timestamps
};

int64_t now_ns();
int32_t this_process();

// The PyTorch op that this thread is in, as the profiler says.
void push_correlation(uint64_t id);
void pop_correlation();

bool timeline_on();
void begin_timeline();
// Waits for what was recorded; what a lost device had not finished is not timed.
Timeline end_timeline();

// With the device lock. The op that launches from now on; "" for those of plans, which are named after their pipelines
// alone: ops share pipelines.
void name_launches(std::string op);
// With the device lock. The number of a launch that was just recorded, from 1.
uint32_t note_launch(const Pipeline& pipeline, const uint32_t* groups, int64_t begun);

// Notes a wait of the host while it lives; does nothing without a timeline. With the device lock.
class NotedWait {
 public:
  explicit NotedWait(const char* name);
  NotedWait(const NotedWait&) = delete;
  NotedWait& operator=(const NotedWait&) = delete;
  ~NotedWait();

 private:
  std::optional<HostSpan> span;
};

// The GPU's times of launches; used by the encoder alone.
class LaunchTimer {
 public:
  explicit LaunchTimer(const Connection& to) : passes(to) {}
  // Reads out what was timed if `count` more would not fit; waits for it then.
  void make_room(size_t count);
  Handle begin_pass(Handle encoder, uint32_t launch);
  // The passes begun since the last call are being submitted, or will not be.
  void submitting();
  void dropping();
  // Fills in the times of all launches whose commands were submitted; waits for them.
  void finish(std::vector<Launch>& launches);

 private:
  struct Ticks {
    uint32_t launch;
    int64_t begin, end;
  };
  void read();

  PassTimer passes;
  std::vector<uint32_t> running;                    // launches of the passes that were not read yet
  std::vector<std::pair<size_t, int64_t>> submits;  // first of `running`, host time
  size_t unsubmitted = 0;                           // index into `running`
  std::vector<Ticks> done;                          // GPU clock, ns
  std::optional<int64_t> offset;                    // from the GPU's clock to the host's
};

}  // namespace webgpu
