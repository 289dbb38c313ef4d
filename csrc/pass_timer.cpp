#include "pass_timer.h"

#include <c10/util/Exception.h>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "abort.h"

namespace webgpu {

namespace {
using Answer = std::atomic<uint32_t>;

void on_answer(uint32_t status, StringView, void* out, void*) {
  static_cast<Answer*>(out)->store(status ? status : UINT32_MAX);
}

Handle make_buffer(const Connection& on, uint64_t usages, uint64_t bytes) {
  BufferDescriptor descriptor{};
  descriptor.usage = usages;
  descriptor.size = bytes;
  return api.create_buffer(on.device, &descriptor);
}
}  // namespace

std::string map_bytes(const Connection& to, Handle staging, uint64_t bytes) {
  constexpr uint32_t wait_any_only = 1, allow_spontaneous = 3;
  auto answer = std::make_unique<Answer>(0);
  MapCallbackInfo info{nullptr, to.dawn ? wait_any_only : allow_spontaneous, on_answer, answer.get(), nullptr};
  Future future = api.map_async(staging, 1, 0, bytes, info);
  if (to.dawn) {
    FutureWaitInfo waited{future, 0};
    api.wait_any(to.instance, 1, &waited, UINT64_MAX);
  } else {
    for (int i = 0; i < 1000 && !*answer; i++) {
      if (!survives([&] { api.device_poll(to.device, 1, nullptr); })) break;
    }
  }
  uint32_t status = *answer;
  if (!status) (void)answer.release();  // the library may still write to it
  TORCH_CHECK(status == 1, "the measured device did not give its results back (status ", status, ")");
  std::string data(static_cast<const char*>(api.mapped_range(staging, 0, bytes)), bytes);
  api.unmap(staging);
  return data;
}

PassTimer::PassTimer(const Connection& to) : device(to) {
  QuerySetDescriptor descriptor{};
  descriptor.type = 2;
  descriptor.count = 2 * most_timed_passes;
  queries = api.create_query_set(to.device, &descriptor);
  resolved = make_buffer(to, usage::query_resolve | usage::copy_src, descriptor.count * 8);
  staging = make_buffer(to, usage::map_read | usage::copy_dst, descriptor.count * 8);
}

PassTimer::~PassTimer() {
  api.query_set_release(queries);
  api.buffer_release(resolved);
  api.buffer_release(staging);
}

Handle PassTimer::begin_pass(Handle encoder) {
  if (passes == most_timed_passes) {
    untimed++;
    return api.begin_compute_pass(encoder, nullptr);
  }
  uint32_t at = 2 * passes++;
  NativeTimestampWrites native{nullptr, queries, at, at + 1};
  DawnTimestampWrites dawn{queries, at, at + 1};
  ComputePassDescriptor descriptor{};
  descriptor.timestamp_writes = device.dawn ? static_cast<void*>(&dawn) : &native;
  return api.begin_compute_pass(encoder, &descriptor);
}

std::vector<uint64_t> PassTimer::ticks() {
  uint32_t count = std::exchange(passes, 0);
  if (!count) return {};
  Handle encoder = api.create_encoder(device.device, nullptr);
  api.resolve_query_set(encoder, queries, 0, 2 * count, resolved, 0);
  api.copy_buffer(encoder, resolved, 0, staging, 0, count * 16);
  Handle commands = api.finish(encoder, nullptr);
  api.encoder_release(encoder);
  TORCH_CHECK(survives([&] { api.submit(device.queue, 1, &commands); }), "the measured device is lost");
  api.command_buffer_release(commands);
  std::string data = map_bytes(device, staging, count * 16);
  std::vector<uint64_t> found(2 * count);
  memcpy(found.data(), data.data(), data.size());
  return found;
}

double PassTimer::period() const { return device.dawn ? 1 : api.timestamp_period(device.queue); }  // Dawn gives nanoseconds

PassTimes PassTimer::read() {
  PassTimes times;
  times.passes = passes;
  times.untimed = std::exchange(untimed, 0);
  if (!times.passes) return times;
  auto found = ticks();
  double unit = period();
  uint64_t step = 0;
  for (uint32_t i = 0; i < times.passes; i++) {
    uint64_t begin = found[2 * i], end = found[2 * i + 1];
    if (end < begin) {
      times.dropped++;
      continue;
    }
    times.gpu += (end - begin) * unit;
    step = std::gcd(step, end - begin);
  }
  times.step = step * unit;
  return times;
}

std::vector<std::pair<int64_t, int64_t>> PassTimer::nanoseconds() {
  auto found = ticks();
  double unit = found.empty() ? 1 : period();
  std::vector<std::pair<int64_t, int64_t>> times;
  for (size_t i = 0; i < found.size(); i += 2) times.push_back({found[i] * unit, found[i + 1] * unit});
  return times;
}

}  // namespace webgpu
