/* The tight loop that the instrument is compared with: written apart from it, straight on the functions of webgpu.h. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void* handle;
typedef struct {
  const char* data;
  size_t length;
} view;
typedef struct {
  void* next;
  view label;
  uint64_t usage, size;
  uint32_t mapped;
} buffer_descriptor;
typedef struct {
  void* next;
  uint32_t binding;
  handle buffer;
  uint64_t offset, size;
  handle sampler, texture;
} group_entry;
typedef struct {
  void* next;
  view label;
  handle layout;
  size_t count;
  const group_entry* entries;
} group_descriptor;

#define FUNCTION(result, name, ...) result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(library, #name)

/* Nanoseconds of a dispatch: `total` of them, each with its encoder, pass and submit, or `batch` > 1 in a pass. */
double direct_loop(const char* path, handle device, handle queue, handle pipeline, handle layout, uint64_t bytes,
                   uint32_t workgroups, uint32_t total, uint32_t batch) {
  void* library = dlopen(path, RTLD_NOW);
  FUNCTION(handle, wgpuDeviceCreateBuffer, handle, const buffer_descriptor*);
  FUNCTION(handle, wgpuDeviceCreateBindGroup, handle, const group_descriptor*);
  FUNCTION(handle, wgpuDeviceCreateCommandEncoder, handle, const void*);
  FUNCTION(handle, wgpuCommandEncoderBeginComputePass, handle, const void*);
  FUNCTION(void, wgpuComputePassEncoderSetPipeline, handle, handle);
  FUNCTION(void, wgpuComputePassEncoderSetBindGroup, handle, uint32_t, handle, size_t, const uint32_t*);
  FUNCTION(void, wgpuComputePassEncoderDispatchWorkgroups, handle, uint32_t, uint32_t, uint32_t);
  FUNCTION(void, wgpuComputePassEncoderEnd, handle);
  FUNCTION(void, wgpuComputePassEncoderRelease, handle);
  FUNCTION(handle, wgpuCommandEncoderFinish, handle, const void*);
  FUNCTION(void, wgpuCommandEncoderRelease, handle);
  FUNCTION(void, wgpuQueueSubmit, handle, size_t, const handle*);
  FUNCTION(void, wgpuCommandBufferRelease, handle);
  FUNCTION(void, wgpuBindGroupRelease, handle);
  FUNCTION(void, wgpuBufferRelease, handle);

  buffer_descriptor of_buffer = {0};
  of_buffer.usage = 128;
  of_buffer.size = bytes;
  handle buffer = wgpuDeviceCreateBuffer(device, &of_buffer);
  group_entry entry = {0};
  entry.buffer = buffer;
  entry.size = bytes;
  group_descriptor of_group = {0};
  of_group.layout = layout;
  of_group.count = 1;
  of_group.entries = &entry;
  handle group = wgpuDeviceCreateBindGroup(device, &of_group);

  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (uint32_t done = 0; done < total; done += batch) {
    handle encoder = wgpuDeviceCreateCommandEncoder(device, NULL);
    handle pass = wgpuCommandEncoderBeginComputePass(encoder, NULL);
    wgpuComputePassEncoderSetPipeline(pass, pipeline);
    for (uint32_t i = 0; i < batch; i++) {
      wgpuComputePassEncoderSetBindGroup(pass, 0, group, 0, NULL);
      wgpuComputePassEncoderDispatchWorkgroups(pass, workgroups, 1, 1);
    }
    wgpuComputePassEncoderEnd(pass);
    wgpuComputePassEncoderRelease(pass);
    handle commands = wgpuCommandEncoderFinish(encoder, NULL);
    wgpuCommandEncoderRelease(encoder);
    wgpuQueueSubmit(queue, 1, &commands);
    wgpuCommandBufferRelease(commands);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  wgpuBindGroupRelease(group);
  wgpuBufferRelease(buffer);
  return ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / total;
}
