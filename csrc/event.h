// Events of the one queue: a copy of a few bytes recorded after the work an event stands for; it is done when that is.
#pragma once
#include <cstdint>
#include <memory>

#include "queue.h"

namespace webgpu {

struct Event {
  PendingRead* pending = nullptr;  // null once the work is known to be done
  int64_t finished_ns = -1;        // of a timed event: when everything before it was done
  ~Event() { forget(); }
  void record(bool timed);
  bool done();
  void wait();

 private:
  void forget();
};

// Whether everything recorded so far is done, without waiting for it.
bool queue_idle();

}  // namespace webgpu
