#include "api.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace webgpu {

Api api;

void load_api(const std::string& path, bool dawn) {
  static std::string& loaded = *new std::string;
  if (path == loaded) return;  // another device of it, whose threads may be calling
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(library, "The WebGPU library ", path, " is not loaded: ", dlerror());
  auto bind = [&](auto& slot, const char* name) {
    slot = reinterpret_cast<std::decay_t<decltype(slot)>>(dlsym(library, name));
    TORCH_CHECK(slot, "The WebGPU library ", path, " has no function ", name,
                "; install the wheel version that "
                "torch-webgpu names in its requirements");
  };
  bind(api.create_buffer, "wgpuDeviceCreateBuffer");
  bind(api.buffer_destroy, "wgpuBufferDestroy");
  bind(api.buffer_release, "wgpuBufferRelease");
  bind(api.create_bind_group, "wgpuDeviceCreateBindGroup");
  bind(api.bind_group_release, "wgpuBindGroupRelease");
  bind(api.create_encoder, "wgpuDeviceCreateCommandEncoder");
  bind(api.begin_compute_pass, "wgpuCommandEncoderBeginComputePass");
  bind(api.set_pipeline, "wgpuComputePassEncoderSetPipeline");
  bind(api.set_bind_group, "wgpuComputePassEncoderSetBindGroup");
  bind(api.dispatch, "wgpuComputePassEncoderDispatchWorkgroups");
  bind(api.end_pass, "wgpuComputePassEncoderEnd");
  bind(api.pass_release, "wgpuComputePassEncoderRelease");
  bind(api.copy_buffer, "wgpuCommandEncoderCopyBufferToBuffer");
  bind(api.finish, "wgpuCommandEncoderFinish");
  bind(api.encoder_release, "wgpuCommandEncoderRelease");
  bind(api.submit, "wgpuQueueSubmit");
  bind(api.command_buffer_release, "wgpuCommandBufferRelease");
  bind(api.write_buffer, "wgpuQueueWriteBuffer");
  bind(api.map_async, dawn ? "wgpuBufferMapAsync2" : "wgpuBufferMapAsync");
  bind(api.mapped_range, "wgpuBufferGetConstMappedRange");
  bind(api.unmap, "wgpuBufferUnmap");
  bind(api.create_query_set, "wgpuDeviceCreateQuerySet");
  bind(api.resolve_query_set, "wgpuCommandEncoderResolveQuerySet");
  bind(api.query_set_release, "wgpuQuerySetRelease");
  if (dawn) {
    bind(api.wait_any, "wgpuInstanceWaitAny");
    bind(api.work_done, "wgpuQueueOnSubmittedWorkDone2");
  } else {
    bind(api.device_poll, "wgpuDevicePoll");
    bind(api.submit_for_index, "wgpuQueueSubmitForIndex");
    bind(api.timestamp_period, "wgpuQueueGetTimestampPeriod");
  }
  loaded = path;
}

}  // namespace webgpu
