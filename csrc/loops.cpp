#include "loops.h"

#include <c10/util/Exception.h>
#include <algorithm>
#include <chrono>

namespace webgpu {

namespace {
double now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void keep_busy(double nanoseconds) {
  for (double end = now() + nanoseconds; now() < end;) {
  }
}

constexpr uint32_t wait_any_only = 1;
}  // namespace

struct Loop {
  LoopSetup setup;
  std::vector<Handle> buffers, groups;
  Handle uniform = nullptr, staging = nullptr;
  uint32_t next = 0;  // dispatches so far, which take the pipelines in turn
  std::unique_ptr<PassTimer> timer;
  bool timing = false;

  explicit Loop(const LoopSetup& from) : setup(from) {
    load_api(setup.library, setup.on.dawn);
    for (uint32_t i = 0; i < setup.bindings; i++) {
      buffers.push_back(make_buffer(usage::storage | usage::copy_src | usage::copy_dst, setup.bytes));
    }
    if (setup.uniform_bytes) uniform = make_buffer(usage::uniform | usage::copy_dst, setup.uniform_bytes);
    staging = make_buffer(usage::map_read | usage::copy_dst, setup.bytes);
    for (auto& pipeline : setup.pipelines) groups.push_back(make_group(pipeline.second));
  }

  ~Loop() {
    for (Handle group : groups) api.bind_group_release(group);
    for (Handle buffer : buffers) api.buffer_release(buffer);
    for (Handle buffer : {uniform, staging}) {
      if (buffer) api.buffer_release(buffer);
    }
  }

  Handle make_buffer(uint64_t usages, uint64_t bytes) {
    BufferDescriptor descriptor{};
    descriptor.usage = usages;
    descriptor.size = bytes;
    return api.create_buffer(setup.on.device, &descriptor);
  }

  Handle make_group(Handle layout) {
    std::vector<BindGroupEntry> entries(setup.bindings + (uniform ? 1 : 0));
    for (uint32_t i = 0; i < entries.size(); i++) {
      bool last = i == setup.bindings;
      entries[i].binding = i;
      entries[i].buffer = last ? uniform : buffers[i];
      entries[i].size = last ? setup.uniform_bytes : setup.bytes;
    }
    BindGroupDescriptor descriptor{};
    descriptor.layout = layout;
    descriptor.entry_count = entries.size();
    descriptor.entries = entries.data();
    return api.create_bind_group(setup.on.device, &descriptor);
  }

  Handle begin_pass(Handle encoder) {
    return timing ? timer->begin_pass(encoder) : api.begin_compute_pass(encoder, nullptr);
  }

  void set_group(Handle pass, uint32_t which) {
    static const uint32_t offset = 0;
    api.set_bind_group(pass, 0, groups[which], uniform ? 1 : 0, &offset);
  }

  // As the product's encoder does: the pipeline where it is another one, the bind group always.
  void dispatch(Handle pass, bool first) {
    uint32_t which = next++ % setup.pipelines.size();
    if (first || setup.pipelines.size() > 1) api.set_pipeline(pass, setup.pipelines[which].first);
    set_group(pass, which);
    api.dispatch(pass, setup.workgroups, 1, 1);
  }

  void end_pass(Handle pass) {
    api.end_pass(pass);
    api.pass_release(pass);
  }

  void submit(Handle encoder) {
    Handle commands = api.finish(encoder, nullptr);
    api.encoder_release(encoder);
    api.submit(setup.on.queue, 1, &commands);
    api.command_buffer_release(commands);
  }

  void dispatch_and_submit(double delay, bool copy) {
    Handle encoder = api.create_encoder(setup.on.device, nullptr);
    Handle pass = begin_pass(encoder);
    dispatch(pass, true);
    end_pass(pass);
    if (copy) api.copy_buffer(encoder, buffers[0], 0, staging, 0, 4);
    if (delay) keep_busy(delay);
    submit(encoder);
  }

  void wait() {
    if (setup.on.dawn) {
      Future done = api.work_done(setup.on.queue, {nullptr, wait_any_only, [](uint32_t, void*, void*) {}, nullptr, nullptr});
      FutureWaitInfo info{done, 0};
      api.wait_any(setup.on.instance, 1, &info, UINT64_MAX);
    } else {
      api.device_poll(setup.on.device, 1, nullptr);
    }
  }

  std::string map_and_read(uint64_t bytes) { return map_bytes(setup.on, staging, bytes); }

  std::string read(Handle buffer, uint64_t bytes) {
    Handle encoder = api.create_encoder(setup.on.device, nullptr);
    api.copy_buffer(encoder, buffer, 0, staging, 0, bytes);
    submit(encoder);
    return map_and_read(bytes);
  }

  void start_timestamps() {
    if (!timer) timer = std::make_unique<PassTimer>(setup.on);
    timing = true;
  }

  void finish_timestamps(Sample& sample) {
    timing = false;
    PassTimes times = timer->read();
    sample.gpu = times.gpu;
    sample.dropped = times.dropped;
    sample.step = times.step;
  }

  void run_each(Method method, uint32_t n, double delay, Sample& sample) {
    for (uint32_t i = 0; i < n; i++) {
      double start = now();
      dispatch_and_submit(delay, method == Method::read_back);
      sample.host += now() - start;
      if (method == Method::waited) wait();
      if (method == Method::read_back) map_and_read(4);
    }
  }

  void run_together(Method method, uint32_t n, double delay) {
    if (method == Method::submits) {
      for (uint32_t i = 0; i < n; i++) dispatch_and_submit(delay, false);
      return;
    }
    Handle encoder = api.create_encoder(setup.on.device, nullptr), pass = nullptr;
    for (uint32_t i = 0; i < n; i++) {
      bool own = method == Method::passes || !pass;
      if (own) pass = begin_pass(encoder);
      dispatch(pass, own);
      if (delay) keep_busy(delay);
      if (method == Method::passes) end_pass(pass);
    }
    if (method == Method::one_pass) end_pass(pass);
    submit(encoder);
  }
};

std::shared_ptr<Loop> make_loop(const LoopSetup& setup) { return std::make_shared<Loop>(setup); }

Sample run_loop(Loop& loop, Method method, uint32_t n, double delay, bool timestamps) {
  TORCH_CHECK(n > 0, "a loop needs at least one dispatch");
  TORCH_CHECK(!timestamps || method == Method::one_pass || n <= most_timed_passes, "timestamps are kept of at most ",
              most_timed_passes, " passes, got ", n);
  Sample sample;
  if (timestamps) loop.start_timestamps();
  double start = now();
  if (method <= Method::unwaited) {
    loop.run_each(method, n, delay, sample);
  } else {
    loop.run_together(method, n, delay);
    sample.host = now() - start;
  }
  if (method >= Method::unwaited) loop.wait();
  sample.wall = now() - start;
  if (timestamps) loop.finish_timestamps(sample);
  return sample;
}

std::vector<double> run_phases(Loop& loop, uint32_t n) {
  std::vector<double> spent(phase_count, 0);
  for (uint32_t i = 0; i < n; i++) {
    double at[phase_count + 1];
    uint32_t which = loop.next++ % loop.setup.pipelines.size();
    at[0] = now();
    Handle encoder = api.create_encoder(loop.setup.on.device, nullptr);
    at[1] = now();
    Handle pass = api.begin_compute_pass(encoder, nullptr);
    at[2] = now();
    api.set_pipeline(pass, loop.setup.pipelines[which].first);
    at[3] = now();
    loop.set_group(pass, which);
    at[4] = now();
    api.dispatch(pass, loop.setup.workgroups, 1, 1);
    at[5] = now();
    api.end_pass(pass);
    at[6] = now();
    Handle commands = api.finish(encoder, nullptr);
    at[7] = now();
    api.submit(loop.setup.on.queue, 1, &commands);
    at[8] = now();
    api.pass_release(pass);
    api.encoder_release(encoder);
    api.command_buffer_release(commands);
    at[9] = now();
    for (uint32_t phase = 0; phase < phase_count; phase++) spent[phase] += at[phase + 1] - at[phase];
  }
  loop.wait();
  return spent;
}

std::string read_loop(Loop& loop) { return loop.read(loop.buffers[0], loop.setup.bytes); }

double clock_cost() {
  constexpr int reads = 1000, tries = 31;
  std::vector<double> found;
  for (int i = 0; i < tries; i++) {
    double start = now(), last = start;
    for (int k = 0; k < reads; k++) last = now();
    found.push_back((last - start) / reads);
  }
  std::nth_element(found.begin(), found.begin() + tries / 2, found.end());
  return found[tries / 2];
}

}  // namespace webgpu
