/* wgpu-native whose device is lost just before a submit, when the test has set `doomed`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

extern void wgpuDeviceDestroy(void*);

void* doomed;

uint64_t wgpuQueueSubmitForIndex(void* queue, size_t count, void* const* commands) {
  uint64_t (*real)(void*, size_t, void* const*) = dlsym(RTLD_NEXT, "wgpuQueueSubmitForIndex");
  void* device = doomed;
  doomed = NULL;
  if (device) wgpuDeviceDestroy(device);
  return real(queue, count, commands);
}
