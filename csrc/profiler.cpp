// The device in torch.profiler: rows of GPU time, and the host's side of each launch, beside PyTorch's own rows.
#include <torch/csrc/profiler/stubs/base.h>

#include "queue.h"
#include "timeline.h"

namespace webgpu {

namespace {
// The old way (torch.autograd.profiler.profile without use_kineto): an event before and after each op. WebGPU has no events
// with times, so each waits and reads the host's clock.
struct Stubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* index, torch::profiler::impl::ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    synchronize();
    if (index) *index = 0;
    auto at = std::make_shared<int64_t>(now_ns());
    if (cpu_ns) *cpu_ns = *at;
    *event = std::move(at);
  }
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub* first,
                const torch::profiler::impl::ProfilerVoidEventStub* second) const override {
    auto at = [](auto* event) { return *static_cast<const int64_t*>(event->get()); };
    return (at(second) - at(first)) * 1e-3f;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> call) const override { call(0); }
  void synchronize() const override { webgpu::synchronize(); }
};

[[maybe_unused]] const bool registered = [] {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();
}  // namespace

}  // namespace webgpu

// The new way: the registry of Kineto for out-of-tree devices, which older versions of PyTorch do not have.
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>)
#define FMT_HEADER_ONLY 1
#define USE_KINETO
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <libkineto.h>
#include <output_base.h>

#include <c10/util/Exception.h>
#include <algorithm>
#include <memory>
#include <set>

#include "device.h"

namespace webgpu {

namespace {
using libkineto::ActivityType, libkineto::GenericTraceActivity;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(const std::set<ActivityType>& types) : kinds(types) {}

  void start() override {
    status_ = libkineto::TraceStatus::RECORDING;
    begin_timeline();
  }

  void stop() override {
    if (status_ != libkineto::TraceStatus::RECORDING) return;
    status_ = libkineto::TraceStatus::PROCESSING;
    try {
      timeline = end_timeline();
    } catch (const std::exception& error) {  // a device that was lost meanwhile
      problems.push_back(error.what());
    }
    if (!timeline.timed && !timeline.launches.empty()) {
      problems.push_back("the adapter " + device.name + " has no timestamp queries");
    }
    for (auto& problem : problems) TORCH_WARN("webgpu: the profiler shows no GPU times: ", problem);
  }

  std::vector<std::string> errors() override { return problems; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, INT64_MAX);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start,
                    int64_t end) override {
    buffer->span = libkineto::TraceSpan(start, end, "webgpu");
    int32_t number = 0;
    for (auto& launch : timeline.launches) {
      if (launch.host.begin < start || launch.host.begin > end) continue;
      add_host(launch.host, ++number, linked);
      if (!launch.end || !kinds.count(ActivityType::CONCURRENT_KERNEL)) continue;
      GenericTraceActivity& kernel = add(ActivityType::CONCURRENT_KERNEL, launch.name, launch.begin, launch.end, number);
      kernel.linked = linked(launch.host.correlation);
      kernel.flow.start = 0;
      kernel.addMetadata("grid", "[" + std::to_string(launch.groups[0]) + ", " + std::to_string(launch.groups[1]) + ", " +
                                     std::to_string(launch.groups[2]) + "]");
    }
    for (auto& wait : timeline.waits) {
      if (wait.begin >= start && wait.begin <= end) add_host(wait, 0, linked);
    }
    for (auto& activity : buffer->activities) logger.handleGenericActivity(*activity);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (timeline.launches.empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, "webgpu", device.name});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    if (timeline.launches.empty()) return {};
    return {libkineto::ResourceInfo{0, 0, 0, "queue"}};
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer); }

  void pushCorrelationId(uint64_t id) override { push_correlation(id); }
  void popCorrelationId() override { pop_correlation(); }

 private:
  GenericTraceActivity& add(ActivityType type, const std::string& name, int64_t begin, int64_t end, int32_t number) {
    buffer->emplace_activity(buffer->span, type, name);
    GenericTraceActivity& activity = *buffer->activities.back();
    activity.startTime = begin;
    activity.endTime = end;
    activity.id = number;
    if (number) {
      activity.flow.id = number;
      activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    }
    return activity;
  }

  void add_host(const HostSpan& span, int32_t number, const libkineto::getLinkedActivityCallback& linked) {
    if (!kinds.count(ActivityType::PRIVATEUSE1_RUNTIME)) return;
    auto& activity = add(ActivityType::PRIVATEUSE1_RUNTIME, span.name, span.begin, span.end, number);
    activity.device = process;
    activity.resource = activity.threadId = span.thread;
    activity.linked = linked(span.correlation);
    activity.flow.start = number != 0;
  }

  std::set<ActivityType> kinds;
  Timeline timeline;
  std::vector<std::string> problems;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer = std::make_unique<libkineto::CpuTraceBuffer>();
  int32_t process = this_process();
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    std::set<ActivityType> ours;
    std::set_intersection(types.begin(), types.end(), wanted.begin(), wanted.end(), std::inserter(ours, ours.begin()));
    return ours.empty() ? nullptr : std::make_unique<Session>(ours);
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  std::string name_ = "webgpu";
  std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL, ActivityType::PRIVATEUSE1_RUNTIME};
};
}  // namespace

REGISTER_PRIVATEUSE1_PROFILER(Profiler);
}  // namespace webgpu
#endif
