#include "event.h"

#include <chrono>
#include <utility>

#include "device.h"

namespace webgpu {

void Event::forget() {
  if (pending) drop_read(std::exchange(pending, nullptr));
}

void Event::record(bool timed) {
  forget();
  finished_ns = -1;
  if (!timed) {
    ensure_device();
    pending = begin_read(error_block(), 0, 4, false);
    return;
  }
  // WebGPU measures time within passes only: a timed event waits for the work before it and reads the host's clock.
  synchronize();
  finished_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

bool Event::done() {
  if (pending && !read_ready(pending)) return false;
  wait();
  return true;
}

void Event::wait() {
  uint32_t word;
  if (pending) finish_read(std::exchange(pending, nullptr), &word);
}

bool queue_idle() {
  if (!device_ready()) return true;
  static Event& last = *new Event;  // outlives the library
  static uint64_t recorded = ~uint64_t(0);
  Lock lock(device_mutex());
  if (recorded != commands_recorded()) {
    last.record(false);
    recorded = commands_recorded();
  }
  return last.done();
}

}  // namespace webgpu
