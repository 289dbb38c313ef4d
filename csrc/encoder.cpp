#include "encoder.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "abort.h"
#include "device.h"

namespace webgpu {

namespace {
// ---------------------------------------------------------------------------------------------------- bind groups

struct BindKey {
  uint64_t words[3 * most_bindings + 1];
  uint32_t count = 0;
  void push(uint64_t word) { words[count++] = word; }
  bool operator==(const BindKey& o) const { return count == o.count && !memcmp(words, o.words, count * 8); }
};

struct BindHash {
  size_t operator()(const BindKey& key) const {
    uint64_t hash = 0x9E3779B97F4A7C15ull;
    for (uint32_t i = 0; i < key.count; i++) {
      __uint128_t product = static_cast<__uint128_t>(hash ^ key.words[i]) * 0xD6E8FEB86659FD93ull;
      hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    return hash;
  }
};

constexpr size_t most_bind_groups = 32768;
constexpr size_t most_waiting = 8;     // batches handed over and not yet encoded
constexpr size_t most_in_flight = 16;  // submits the GPU has not finished: each holds host memory

// What only one thread at a time, the one that holds `encoding`, touches. Never destroyed: the thread outlives main().
struct Encoder {
  std::mutex encoding;
  std::unordered_map<BindKey, Handle, BindHash> bind_groups;
  Handle ring = nullptr, upload_buffer = nullptr;
  std::unique_ptr<PassTimer> timer;
  bool timing = false;
  bool timeline = false;
  std::unique_ptr<LaunchTimer> launches;
  std::deque<uint64_t> in_flight;  // submission indices (wgpu-native) or futures (Dawn)

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<Batch> waiting;
  std::vector<Batch> spare;
  bool busy = false, started = false;

  std::atomic<uint64_t> submits{0}, dispatches{0}, bind_group_misses{0}, bind_group_count{0};
};

Encoder& state() {
  static auto* encoder = new Encoder;
  return *encoder;
}

Connection connection() { return {device.device, device.queue, device.instance, device.dawn}; }

Handle make_buffer(uint64_t usages, uint64_t size) {
  BufferDescriptor descriptor{};
  descriptor.usage = usages;
  descriptor.size = size;
  return api.create_buffer(device.device, &descriptor);
}

void release_bind_groups(Encoder& e) {
  for (auto& entry : e.bind_groups) api.bind_group_release(entry.second);
  e.bind_groups.clear();
  e.bind_group_count = 0;
}

Handle bind_group(Encoder& e, const Command& command, const Window* windows) {
  BindKey key;
  key.push(reinterpret_cast<uint64_t>(command.layout));
  for (uint32_t i = 0; i < command.bindings; i++) {
    key.push(windows[i].block->id);
    key.push(windows[i].offset);
    key.push(windows[i].size);
  }
  auto found = e.bind_groups.find(key);
  if (found != e.bind_groups.end()) return found->second;
  e.bind_group_misses++;
  if (e.bind_groups.size() >= most_bind_groups) release_bind_groups(e);
  BindGroupEntry entries[most_bindings + 1] = {};
  for (uint32_t i = 0; i < command.bindings; i++) {
    entries[i].binding = i;
    entries[i].buffer = windows[i].block->buffer;
    entries[i].offset = windows[i].offset;
    entries[i].size = windows[i].size;
  }
  auto& uniform = entries[command.bindings];
  uniform.binding = command.bindings;
  uniform.buffer = e.ring;
  uniform.size = command.uniform_slots * uniform_slot;
  BindGroupDescriptor descriptor{};
  descriptor.layout = command.layout;
  descriptor.entry_count = command.bindings + 1;
  descriptor.entries = entries;
  e.bind_group_count++;
  return e.bind_groups[key] = api.create_bind_group(device.device, &descriptor);
}

// ---------------------------------------------------------------------------------------------------- encoding

Handle record(Encoder& e, const Batch& batch) {
  Handle encoder = api.create_encoder(device.device, nullptr), pass = nullptr, current = nullptr;
  auto end = [&] {
    api.end_pass(pass);
    api.pass_release(std::exchange(pass, nullptr));
  };
  for (auto& command : batch.commands) {
    if (!command.pipeline) {
      if (pass) end();
      Handle src = command.src ? command.src : e.upload_buffer;
      api.copy_buffer(encoder, src, command.src_offset, command.dst, command.dst_offset, command.size);
      continue;
    }
    bool alone = e.launches && command.launch;  // timed by itself
    if (alone && pass) end();
    if (!pass) {
      pass = alone      ? e.launches->begin_pass(encoder, command.launch)
             : e.timing ? e.timer->begin_pass(encoder)
                        : api.begin_compute_pass(encoder, nullptr);
      current = nullptr;
    }
    Handle group = bind_group(e, command, batch.windows.data() + command.first_window);
    if (command.pipeline != current) api.set_pipeline(pass, current = command.pipeline);
    api.set_bind_group(pass, 0, group, 1, &command.uniform_offset);
    api.dispatch(pass, command.groups[0], command.groups[1], command.groups[2]);
    e.dispatches++;
    if (alone) end();
  }
  if (pass) end();
  Handle commands = api.finish(encoder, nullptr);
  api.encoder_release(encoder);
  return commands;
}

// Submits, then waits while the GPU is more than `most_in_flight` submits behind.
void submit(Encoder& e, Handle commands) {
  if (device.dawn) {
    api.submit(device.queue, 1, &commands);
    constexpr uint32_t wait_any_only = 1;
    e.in_flight.push_back(
        api.work_done(device.queue, {nullptr, wait_any_only, [](uint32_t, void*, void*) {}, nullptr, nullptr}).id);
  } else {
    uint64_t index = 0;
    if (!survives([&] { index = api.submit_for_index(device.queue, 1, &commands); })) return lose_device();
    e.in_flight.push_back(index);
  }
  while (e.in_flight.size() > most_in_flight && !device_lost()) {
    uint64_t oldest = e.in_flight.front();
    e.in_flight.pop_front();
    if (device.dawn) {
      FutureWaitInfo wait{{oldest}, 0};
      api.wait_any(device.instance, 1, &wait, UINT64_MAX);
    } else {
      poll_device(true, &oldest);
    }
  }
}

// Needs `encoding`. Errors are collected by the device's callback; a batch with one is not submitted.
void encode(Encoder& e, const Batch& batch) {
  if (device_lost()) return;
  if (!e.ring) e.ring = make_buffer(usage::uniform | usage::copy_dst, uint64_t(ring_slots) * uniform_slot);
  if (!e.upload_buffer && !batch.uploads.empty()) {
    e.upload_buffer = make_buffer(usage::copy_src | usage::copy_dst, upload_capacity);
  }
  // Queue writes run after earlier submits and before this one: the ring needs no second half.
  if (!batch.words.empty()) api.write_buffer(device.queue, e.ring, 0, batch.words.data(), batch.words.size() * 4);
  if (!batch.uploads.empty()) api.write_buffer(device.queue, e.upload_buffer, 0, batch.uploads.data(), batch.uploads.size());
  if (e.timeline && device.timestamps && !e.launches) e.launches = std::make_unique<LaunchTimer>(connection());
  if (e.launches) e.launches->make_room(batch.commands.size());
  Handle commands = record(e, batch);
  if (has_errors()) {  // submitting invalid commands aborts the process in wgpu-native
    if (commands) api.command_buffer_release(commands);
    if (e.launches) e.launches->dropping();
    release_bind_groups(e);  // one of them may be the invalid object
    return;
  }
  if (e.launches) e.launches->submitting();
  submit(e, commands);
  api.command_buffer_release(commands);
  e.submits++;
}

void run(Encoder& e) {
  std::unique_lock<std::mutex> lock(e.mutex);
  for (;;) {
    e.changed.wait(lock, [&] { return !e.waiting.empty(); });
    Batch batch = std::move(e.waiting.front());
    e.waiting.pop_front();
    e.busy = true;
    lock.unlock();
    {
      std::lock_guard<std::mutex> guard(e.encoding);
      encode(e, batch);
    }
    batch.clear();
    lock.lock();
    e.spare.push_back(std::move(batch));
    e.busy = false;
    e.changed.notify_all();
  }
}
}  // namespace

void Batch::clear() {
  commands.clear();
  windows.clear();
  words.clear();
  uploads.clear();
}

void submit_batch(Batch& batch) {
  if (device_inherited()) batch.clear();
  if (batch.commands.empty()) return;
  if (!device.threaded) return submit_batch_now(batch);
  Encoder& e = state();
  std::unique_lock<std::mutex> lock(e.mutex);
  if (!e.started) {
    std::thread([&e] { run(e); }).detach();
    e.started = true;
  }
  e.changed.wait(lock, [&] { return e.waiting.size() < most_waiting; });
  e.waiting.push_back(std::move(batch));
  batch = Batch();
  if (!e.spare.empty()) {
    batch = std::move(e.spare.back());
    e.spare.pop_back();
  }
  e.changed.notify_all();
}

void submit_batch_now(Batch& batch) {
  if (device_inherited()) batch.clear();
  drain();
  if (batch.commands.empty()) return;
  Encoder& e = state();
  std::lock_guard<std::mutex> guard(e.encoding);
  encode(e, batch);
  batch.clear();
}

void drain() {
  if (device_inherited()) return;
  Encoder& e = state();
  std::unique_lock<std::mutex> lock(e.mutex);
  e.changed.wait(lock, [&] { return e.waiting.empty() && !e.busy; });
}

void drop_bind_groups() {
  if (device_inherited()) return;
  drain();
  Encoder& e = state();
  std::lock_guard<std::mutex> guard(e.encoding);
  release_bind_groups(e);
}

void forget_encoded() {
  drain();
  Encoder& e = state();
  std::lock_guard<std::mutex> guard(e.encoding);
  e.bind_groups.clear();
  e.bind_group_count = 0;
  e.ring = e.upload_buffer = nullptr;
  e.in_flight.clear();
  (void)e.timer.release();  // what they hold is gone with its device
  (void)e.launches.release();
  e.timing = false;
}

PassTimes time_passes(bool on) {
  drain();
  Encoder& e = state();
  std::lock_guard<std::mutex> guard(e.encoding);
  if (on && !e.timer) {
    e.timer = std::make_unique<PassTimer>(connection());
  }
  e.timing = on;
  return e.timer ? e.timer->read() : PassTimes{};
}

void time_launches(bool on) {
  if (device_inherited()) return;
  drain();
  Encoder& e = state();
  std::lock_guard<std::mutex> guard(e.encoding);
  e.timeline = on;
}

void finish_launches(std::vector<Launch>& launches) {
  time_launches(false);
  if (device_inherited()) return;
  Encoder& e = state();
  std::lock_guard<std::mutex> guard(e.encoding);
  if (!e.launches) return;
  if (device_lost()) {
    (void)e.launches.release();
  } else {
    auto timer = std::move(e.launches);
    timer->finish(launches);
  }
}

EncoderStats encoder_stats() {
  Encoder& e = state();
  return {e.submits, e.dispatches, e.bind_group_count, e.bind_group_misses};
}

}  // namespace webgpu
