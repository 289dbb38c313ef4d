#include "timeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "device.h"
#include "encoder.h"
#include "queue.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace webgpu {

namespace {
std::atomic<bool> active{false};
Timeline current;    // under the device lock
std::string op_now;  // the same
thread_local std::vector<uint64_t> correlations;

int32_t this_thread() {
#ifdef _WIN32
  return static_cast<int32_t>(GetCurrentThreadId());
#elif defined(__APPLE__)
  uint64_t id = 0;
  pthread_threadid_np(nullptr, &id);
  return static_cast<int32_t>(id);
#else
  return static_cast<int32_t>(syscall(SYS_gettid));
#endif
}

HostSpan span_from(const char* name, int64_t begin) {
  return {name, correlations.empty() ? 0 : correlations.back(), this_thread(), begin, 0};
}
}  // namespace

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int32_t this_process() {
#ifdef _WIN32
  return static_cast<int32_t>(GetCurrentProcessId());
#else
  return getpid();
#endif
}

void push_correlation(uint64_t id) { correlations.push_back(id); }

void pop_correlation() {
  if (!correlations.empty()) correlations.pop_back();
}

bool timeline_on() { return active.load(std::memory_order_relaxed); }

void begin_timeline() {
  Lock lock(device_mutex());
  if (device_ready() && !device_lost()) flush();  // recorded before: not part of it
  current = Timeline();
  time_launches(true);
  active = true;
}

Timeline end_timeline() {
  Lock lock(device_mutex());
  active = false;
  Timeline timeline = std::exchange(current, Timeline());
  timeline.timed = device.timestamps;
  if (device_ready() && !device_lost()) flush();
  finish_launches(timeline.launches);
  return timeline;
}

void name_launches(std::string op) { op_now = op.rfind("aten::", 0) == 0 ? op.substr(6) : std::move(op); }

uint32_t note_launch(const Pipeline& pipeline, const uint32_t* groups, int64_t begun) {
  std::string name = *pipeline.name;
  size_t kernel = name.rfind(" (");
  if (!op_now.empty() && kernel != std::string::npos) name.replace(0, kernel, op_now);
  Launch launch{std::move(name), {groups[0], groups[1], groups[2]}, span_from("webgpu dispatch", begun)};
  launch.host.end = now_ns();
  current.launches.push_back(std::move(launch));
  return current.launches.size();
}

NotedWait::NotedWait(const char* name) {
  if (timeline_on()) span = span_from(name, now_ns());
}

NotedWait::~NotedWait() {
  if (!span || !timeline_on()) return;
  span->end = now_ns();
  current.waits.push_back(*span);
}

void LaunchTimer::make_room(size_t count) {
  if (running.size() + count > most_timed_passes) read();
}

Handle LaunchTimer::begin_pass(Handle encoder, uint32_t launch) {
  running.push_back(launch);
  return passes.begin_pass(encoder);
}

void LaunchTimer::submitting() {
  if (unsubmitted < running.size()) submits.push_back({unsubmitted, now_ns()});
  unsubmitted = running.size();
}

void LaunchTimer::dropping() {
  running.resize(unsubmitted);
  passes.rewind(unsubmitted);
}

void LaunchTimer::read() {
  auto times = passes.nanoseconds();
  for (auto [first, host] : submits) {
    // Nothing runs before it is submitted: the submit that the GPU took up quickest tells how the clocks differ.
    int64_t least = host - times[first].first;
    offset = std::max(offset.value_or(least), least);
  }
  for (size_t i = 0; i < times.size(); i++) done.push_back({running[i], times[i].first, times[i].second});
  running.clear();
  submits.clear();
  unsubmitted = 0;
}

void LaunchTimer::finish(std::vector<Launch>& launches) {
  read();
  for (auto& ticks : done) {
    if (ticks.launch > launches.size() || ticks.end < ticks.begin) continue;  // the specification allows the latter
    launches[ticks.launch - 1].begin = ticks.begin + *offset;
    launches[ticks.launch - 1].end = ticks.end + *offset;
  }
}

}  // namespace webgpu
